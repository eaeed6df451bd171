# SPDX-License-Identifier: MIT
r"""Rounds that verified everything, played again under other plans.

A round of A rows whose whole draft was verified tells what any shorter draft
would have kept, and the cost table what it would have taken:

  plan             tokens          seconds
  no drafting      A               C(A)
  n drafts         A + kept        d + C(A + n)      d: proposing

Everybody is judged on the same rounds by the same costs, so luck and load do
not decide: rates are  sum of tokens / sum of seconds.

  fixed depth      the same depth in every row and round; 0 does not draft
  oracle           knows what is kept:  the largest rate that any choice of n
                   in each round can reach. r is that rate where

                     sum over rounds of  max_n (tokens_n - r seconds_n)  =  0

                   (Dinkelbach, 1967); what n nodes keep at best is a knapsack
                   over the rows, exact for chains and trees
  equal nodes      as many nodes as the policy chose in that round, dealt out
                   evenly; a last level that is not full counts in proportion
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jspec.depth import base as depth_lib
from jspec.depth import costs as costs_lib
from jspec.depth import static
from jspec.serve import device

DEPTHS = (0, 1, 2, 4, 8)


@dataclasses.dataclass(frozen=True)
class Round:
  """A round of A active rows, of which everything is known.

  Attributes:
    scores: survival of the drafts, [A, G].
    limits: drafts that each row had, [A].
    path: nodes that were right, ascending and then 0, [A, G].
    costs: of such a round; its first budget is A nodes, anchors alone.
  """

  scores: np.ndarray
  limits: np.ndarray
  path: np.ndarray
  costs: costs_lib.Costs

  @property
  def num_rows(self) -> int:
    return self.limits.shape[0]

  def kept(self, counts: np.ndarray) -> int:
    """Drafts that are kept when so many of each row are verified."""
    return int(np.sum((self.path > 0) & (self.path <= counts[:, None])))

  def seconds(self, num_drafts: int) -> float:
    """Of proposing and verifying so many; infinite if no budget holds them."""
    nodes = np.asarray(self.costs.nodes)
    step = int(np.searchsorted(nodes, self.num_rows + num_drafts))
    if step == len(nodes):
      return np.inf
    return float(self.costs.draft_s) + float(self.costs.verify_s[step])


class Total(NamedTuple):
  """Tokens and seconds of many rounds."""

  tokens: float
  seconds: float

  @property
  def rate(self) -> float:
    return self.tokens / self.seconds


def make(costs: costs_lib.Costs, used: device.Used) -> Round | None:
  """The last round of a launch that verified everything; None if nobody ran."""
  is_active = np.asarray(used.num_verified) >= 0
  if not is_active.any():
    return None
  nodes = np.array(costs.nodes)
  nodes[0] = is_active.sum()  # As a round does (`serve.launch`).
  return Round(
    scores=np.asarray(used.scores)[is_active],
    limits=np.asarray(used.num_verified)[is_active],
    path=np.asarray(used.path)[is_active],
    costs=costs_lib.Costs(
      nodes=jax.device_put(nodes),
      verify_s=costs.verify_s,
      draft_s=costs.draft_s,
    ),
  )


def counts(policy: depth_lib.DepthPolicy, of: Round) -> np.ndarray:
  """What a policy would have verified, [A]."""
  load = depth_lib.Load(
    is_active=jax.device_put(np.ones((of.num_rows,), bool)),
    limits=jax.device_put(of.limits.astype(np.int32)),
  )
  scores = jax.device_put(of.scores.astype(np.float32))
  return np.asarray(_plan(policy, scores, load, of.costs))


_plan = jax.jit(
  lambda policy, scores, load, costs: policy.plan(scores, load, costs),
  static_argnums=0,
)


def plain(rounds: Sequence[Round]) -> Total:
  """Without drafting."""
  return Total(
    sum(one.num_rows for one in rounds),
    sum(float(one.costs.verify_s[0]) for one in rounds),
  )


def planned(rounds: Sequence[Round], policy: depth_lib.DepthPolicy) -> Total:
  """Under a policy that drafts in every round."""
  tokens, seconds = 0, 0.0
  for one in rounds:
    verified = counts(policy, one)
    tokens += one.num_rows + one.kept(verified)
    seconds += one.seconds(int(verified.sum()))
  return Total(tokens, seconds)


def mixed(totals: Mapping[str, Total], num_rounds: Mapping[str, int]) -> Total:
  """Of something that ran so many rounds of each form."""
  return Total(
    sum(number * totals[form].tokens for form, number in num_rounds.items()),
    sum(number * totals[form].seconds for form, number in num_rounds.items()),
  )


def fixed(rounds: Sequence[Round]) -> dict[int, float]:
  """Tokens a second by fixed depth: of `DEPTHS`, and of the whole draft."""
  longest = rounds[0].scores.shape[1]
  depths = [depth for depth in DEPTHS if depth < longest] + [longest]
  return {
    depth: (
      planned(rounds, static.Static(depth=depth)) if depth else plain(rounds)
    ).rate
    for depth in depths
  }


def oracle(rounds: Sequence[Round], *, may_skip: bool) -> float:
  """Tokens a second of the best plan there was.

  Args:
    rounds: what is known.
    may_skip: it may also leave out proposing.
  """
  options = [_options(one, may_skip) for one in rounds]
  rate = 0.0
  while True:
    tokens = seconds = 0.0
    for found in options:
      best = np.argmax(found[:, 0] - rate * found[:, 1])
      tokens += found[best, 0]
      seconds += found[best, 1]
    if tokens / seconds <= rate * (1 + 1e-9):
      return tokens / seconds
    rate = tokens / seconds


def _options(one, may_skip):
  """Tokens and seconds of each budget, and of not drafting, [K, 2]."""
  nodes = np.asarray(one.costs.nodes)
  verify_s = np.asarray(one.costs.verify_s, float)
  best = most_kept(one.path, int(nodes[-1]) - one.num_rows)
  found = [
    (one.num_rows + best[size - one.num_rows], float(one.costs.draft_s) + cost)
    for size, cost in zip(nodes, verify_s, strict=True)
  ]
  if may_skip:
    found.append((one.num_rows, verify_s[0]))
  return np.asarray(found, float)


def most_kept(path: np.ndarray, num_drafts: int) -> np.ndarray:
  """Most drafts that 0, 1, ... `num_drafts` verified ones can keep.

  Verifying a row down to its j-th right node costs that node's place in the
  row's list and keeps j drafts; one choice for each row.

  Args:
    path: right nodes of each row, ascending and then 0, [A, G].
    num_drafts: the largest number.
  """
  best = np.zeros(num_drafts + 1, int)
  for nodes in path:
    before = best.copy()
    for kept, node in enumerate(nodes[nodes > 0], 1):
      if node <= num_drafts:
        gained = before[: num_drafts + 1 - node] + kept
        best[node:] = np.maximum(best[node:], gained)
  return best


def over_uniform(
  rounds: Sequence[Round], policy: depth_lib.DepthPolicy
) -> float | None:
  """Drafts that a policy's nodes keep, over those of as many dealt evenly.

  None where even nodes keep nothing.
  """
  chosen = evenly = 0.0
  for one in rounds:
    verified = counts(policy, one)
    chosen += one.kept(verified)
    evenly += uniform(one, int(verified.sum()))
  return chosen / evenly if evenly else None


def uniform(one: Round, num_drafts: int) -> float:
  """Drafts kept when `num_drafts` of them are dealt out level by level."""
  kept = 0.0
  for node in range(1, one.scores.shape[1] + 1):
    num_rows = int(np.sum(one.limits >= node))
    taken = min(num_drafts, num_rows)
    if not taken:
      break
    kept += taken / num_rows * np.sum(one.path == node)
    num_drafts -= taken
  return kept
