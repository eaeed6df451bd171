# SPDX-License-Identifier: MIT
r"""D-cut: one budget for the batch, spent on its most likely drafts.

  n* = argmax_n (A + sum of the n best scores) / (draft_s + C(A + n))

with A decoding rows and C the measured time of the smallest compiled budget
that holds A + n nodes (arXiv 2607.14647; AngelSpec, section 4). Every budget is
tried, filled as far as there are drafts: on a staircase the value has many
local maxima, so a search that stops at the first dip would be wrong. n* = 0 is
allowed and means that this round decodes plainly.

The page counts the bonus token as a score of 1; here scores are of drafts only
and A stands for the bonus tokens: the same sum. It tries four ratios of the
full draft, which `ratios` reproduces.

Whether a draft is kept depends on the scores behind it too. That is lossless
with drafts that are a function of the prefix; for others see `safety.py`.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from jspec import errors
from jspec.depth import base, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int

PAPER_RATIOS = (0.25, 0.5, 0.75, 1.0)
MODES = ('live', 'stale')


@dataclasses.dataclass(frozen=True, kw_only=True)
class DCut:
  """Ranks the drafts of all rows by survival and cuts by measured cost.

  Attributes:
    floor: drafts that every row keeps, where it has them and they fit.
    ratios: instead of every budget, try these shares of all drafts of the
      decoding rows. One ratio is a fixed budget.
    mode: 'live': scores are this round's. 'stale': they are those of an earlier
      round, which no draft of this round has touched.
  """

  floor: int = 0
  ratios: tuple[float, ...] = ()
  mode: str = 'live'

  def __post_init__(self):
    if self.floor < 0:
      raise errors.UserError(f'dcut: floor={self.floor}; give 0 or more drafts')
    if not all(0 < ratio <= 1 for ratio in self.ratios):
      raise errors.UserError(
        f'dcut: ratios={self.ratios}; each is a share of the draft above 0 and'
        ' at most 1'
      )
    if self.mode not in MODES:
      raise errors.UserError(
        f'dcut: mode={self.mode!r}; give {" or ".join(MODES)}'
      )

  @property
  def reads(self) -> str:
    if self.mode == 'stale':
      return base.STALE
    # A fixed budget is spent from the top: no draft's fate depends on the ones
    # behind it.
    return base.EARLIER if len(self.ratios) == 1 else base.ALL

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    num_active = jnp.sum(load.is_active, dtype=jnp.int32)
    ranked = ranking.rank(base.clean(scores, load), self.floor)
    if self.ratios:
      num_kept = self._by_ratio(ranked, scores.shape, num_active, costs)
      seconds = costs.round(num_active + num_kept)
      is_possible = jnp.ones_like(num_kept, bool)
    else:
      num_kept = filled(ranked, num_active, costs)
      seconds = costs.draft_s + costs.verify_s
      is_possible = costs.nodes >= num_active + ranked.num_first
    tokens = num_active + ranked.gained[num_kept]
    rate = jnp.where(is_possible, tokens / seconds, -1.0)
    # Where the floor fits nowhere, the largest budget keeps the best of it.
    last = num_kept.shape[0] - 1
    best = jnp.where(jnp.any(is_possible), jnp.argmax(rate), last)
    return ranking.counts(ranked, num_kept[best])

  def _by_ratio(self, ranked, shape, num_active, costs):
    # Rounded up on the host for every number of rows, because a float32
    # product such as 0.2 * 15 may come out above the whole number it is.
    num_rows, depth = shape
    table = np.array(
      [
        [math.ceil(ratio * rows * depth - 1e-9) for rows in range(num_rows + 1)]
        for ratio in self.ratios
      ],
      np.int32,
    )
    wanted = jnp.maximum(jnp.asarray(table)[:, num_active], ranked.num_first)
    room = jnp.maximum(costs.nodes[-1] - num_active, 0)
    return jnp.minimum(wanted, jnp.minimum(ranked.num_positive, room))


def filled(
  ranked: ranking.Ranking, num_active: Int[Array, ''], costs: Costs
) -> Int[Array, 'K']:
  """How many drafts each budget can hold, and there are."""
  room = jnp.maximum(costs.nodes - num_active, 0)
  return jnp.minimum(room, ranked.num_positive)
