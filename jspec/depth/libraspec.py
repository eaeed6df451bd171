# SPDX-License-Identifier: MIT
r"""LibraSpec: a row stops where the next drafts stop paying.

With q_i the confidence of draft i (from 1) and d drafts at hand,

  S_i = q_i (1 + S_{i+1})          accepted from i on, given all before
  e_i = floor(alpha S_i + i)       how far it pays to go once at i
  depth = min_i e_i                (arXiv 2608.08721, algorithm 1)

A weak draft is kept itself (e_i >= i); what goes is what follows it. Where the
minimum lies beyond d the row would like more drafts than it has; `extension`
says how many, for a drafter that can continue inside the round:

  alpha = 2, q = .9 .8 .3            e = 4 4 3         depth 3, stop
  alpha = 2, q = .9 .8 .3 .9 .9 .9   e = 5 5 5 8 8 7   back off from 6 to 5
  alpha = 2, q = 1 x 10              e_10 = 12         two more, please

One constant alpha stands for what a round costs, and a row does not know the
others: `libraspec_calibrated` reads the table, `dcut` sees the batch. Scores
are survival P_i = q_1 ... q_i, so S_i = (P_i + ... + P_d) / P_{i-1}.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.depth import base, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int

_FAR = 2**30  # Farther than any draft; a minimum ignores it.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraSpec:
  """The paper's rule, for chains.

  Attributes:
    alpha: how cheap verifying is: 2.0 to 2.2 in the paper.
    max_depth: no row goes deeper, extended or not; the paper's best is 24 with
      DFlash and 60 with a diffusion drafter.
  """

  alpha: float = 2.2
  max_depth: int = 24

  def __post_init__(self):
    if not 0 < self.alpha < float('inf'):
      raise errors.UserError(
        f'libraspec: alpha={self.alpha}; give a positive number (paper: 2.2)'
      )
    if self.max_depth < 1:
      raise errors.UserError(
        f'libraspec: max_depth={self.max_depth}; give 1 or more'
      )

  @property
  def reads(self) -> str:
    return base.ALL

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    scores, available = self._drafts(scores, load)
    wanted = farthest(scores, available, self.alpha)
    return ranking.fit(
      jnp.minimum(wanted, available),
      scores,
      jnp.sum(load.is_active, dtype=jnp.int32),
      costs.nodes[-1],
    )

  def extension(
    self, scores: Float[Array, 'B G'], load: base.Load
  ) -> Int[Array, 'B']:
    """Drafts that each row wants on top of those it has.

    0 in a row that backs off: it backs off once and stops, so rounds end.
    `load.limits` is what the row could use, not what it has. At most
    `max_depth` drafts in all.
    """
    scores, available = self._drafts(scores, load)
    wanted = farthest(scores, available, self.alpha)
    most = jnp.minimum(load.limits, self.max_depth)
    more = jnp.maximum(jnp.minimum(wanted, most) - available, 0)
    return jnp.where(available > 0, more, 0)

  def _drafts(self, scores, load):
    limits = jnp.minimum(load.limits, self.max_depth)
    scores = base.clean(scores, dataclasses.replace(load, limits=limits))
    return scores, jnp.sum(scores > 0, axis=1, dtype=jnp.int32)


def farthest(
  scores: Float[Array, 'B G'], num_drafts: Int[Array, 'B'], alpha: float
) -> Int[Array, 'B']:
  """min_i e_i over the first `num_drafts`; may exceed them. 0 without any."""
  number = jnp.arange(1, scores.shape[1] + 1)
  inside = number <= num_drafts[:, None]
  expected = rest(jnp.where(inside, scores, 0.0)) / before(scores)
  reach = jnp.floor(alpha * expected + number)
  least = jnp.min(jnp.where(inside, reach, _FAR), axis=1, initial=_FAR)
  return jnp.where(num_drafts > 0, least, 0).astype(jnp.int32)


def rest(scores: Float[Array, 'B G']) -> Float[Array, 'B G']:
  """Sum of each score and those behind it in the row."""
  return jax.lax.cumsum(scores, axis=1, reverse=True)


def before(scores: Float[Array, 'B G']) -> Float[Array, 'B G']:
  """The score of the draft before each; 1 (the anchor) for the first."""
  ones = jnp.ones_like(scores[:, :1])
  shifted = jnp.concatenate([ones, scores[:, :-1]], axis=1)
  # Where it is 0 there is no draft behind it either, and nobody reads the rest.
  return jnp.where(shifted > 0, shifted, 1.0)
