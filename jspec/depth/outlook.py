# SPDX-License-Identifier: MIT
r"""What a form of a round would reach, by prices and acceptance.

Tokens a second of a row, with A rows, survival s_j of the j-th draft of a row
and the price C(n) of verifying n nodes (C staircase, without the drafting d):

  plain      1 / plain_s                          known but for the price
  full       (1 + sum_j s_j) / (d + C(all))
  adaptive   at least what n drafts dealt out evenly reach, for the best n:
               (A + drafts accepted) / (d + C(A + n)) / A
             at most what an oracle reaches, which verifies only what will be
             accepted, at prices on the convex hull of C:
               (A + m) / (d + hull C(A + m)) / A,     m <= A sum_j s_j

No policy passes the second, since it verifies what it accepts and on average
pays at least the hull. How near it comes depends on its confidence, so the
middle of both is a guess that is half of their distance wrong.

What is accepted of a row does not depend on how many rows there are: acceptance
seen anywhere tells what other numbers of rows would do.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

PRICE_ERROR = 0.1  # relative, of a price that other launches were measured by
MODEL_ERROR = 0.2  # and of what is drafted, where acceptance may differ


class Prices(NamedTuple):
  """Expected seconds of a round at the present rows.

  Attributes:
    plain_s: of a round without drafts; None if none ever runs.
    draft_s: of proposing.
    nodes: total nodes of each budget, ascending; the first holds anchors.
    verify_s: seconds of verifying each, non-decreasing.
  """

  plain_s: float | None
  draft_s: float
  nodes: Sequence[int]
  verify_s: Sequence[float]


class Guess(NamedTuple):
  """Tokens of a row a second, give or take a standard error, and a round."""

  rate: float
  error: float
  round_s: float


def plain(prices: Prices) -> Guess:
  """Without drafts: a token a round."""
  rate = 1 / prices.plain_s
  return Guess(rate, PRICE_ERROR * rate, prices.plain_s)


def full(
  prices: Prices, survival: Sequence[float], upper: Sequence[float]
) -> Guess:
  """The whole draft; `upper` is a standard error above `survival`."""
  round_s = prices.draft_s + prices.verify_s[-1]
  rate = (1 + sum(survival)) / round_s
  error = (sum(upper) - sum(survival)) / round_s
  return Guess(rate, math.hypot(error, MODEL_ERROR * rate), round_s)


def adaptive(
  rows: int,
  prices: Prices,
  survival: Sequence[float],
  upper: Sequence[float],
) -> Guess:
  """A policy that cuts the draft; nothing is assumed of its confidence."""
  drafts = [max(total - rows, 0) for total in prices.nodes]
  drafts[0] = 0
  seconds = [prices.draft_s + verify_s for verify_s in prices.verify_s]
  least = max(
    (rows + rows * _evenly(survival, number / rows)) / price
    for number, price in zip(drafts, seconds, strict=True)
  )
  most = _oracle(rows, rows * sum(upper), drafts, seconds)
  rate = math.sqrt(least * most) / rows
  error = (most - least) / 2 / rows
  # What it pays is unknown as well; no less than without a draft.
  return Guess(rate, math.hypot(error, MODEL_ERROR * rate), seconds[0])


def _evenly(survival, depth):
  """Accepted drafts of a row that verifies `depth`, which may be a fraction."""
  whole = min(int(depth), len(survival))
  rest = survival[whole] if whole < len(survival) else 0.0
  return sum(survival[:whole]) + (depth - whole) * rest


def _oracle(rows, accepted, drafts, seconds):
  """Most tokens a second of all rows with at most `accepted` drafts right."""
  points = list(zip(drafts, seconds, strict=True))
  best = max((rows + min(n, accepted)) / price for n, price in points)
  for n, price in points:
    for later, dear in points:
      if n < accepted < later:
        share = (accepted - n) / (later - n)
        best = max(best, (rows + accepted) / (price + share * (dear - price)))
  return best
