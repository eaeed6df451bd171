# SPDX-License-Identifier: MIT
"""First drop: DSpark's scheduler, lossless with sampled drafts.

Drafts are admitted in order of survival while tokens per second rise, and the
first that does not raise them ends it (arXiv 2607.05147, algorithm 1). Whether
a draft is verified then depends on no score behind it in its row, so
with scores that do not look at the token drafted there, rejection sampling
keeps the target's law. The global optimum (`dcut`) does not.

The price: on a staircase it stops at the edge of the first step that does not
pay at once, though a later one may.
"""

import dataclasses

import jax.numpy as jnp

from jspec.depth import base, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class FirstDrop:
  """Admits the best drafts of the batch until one does not pay."""

  @property
  def reads(self) -> str:
    return base.EARLIER

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    num_active = jnp.sum(load.is_active, dtype=jnp.int32)
    ranked = ranking.rank(base.clean(scores, load))
    num_kept = jnp.arange(ranked.gained.shape[0], dtype=jnp.int32)
    rate = (num_active + ranked.gained) / costs.round(num_active + num_kept)
    rises = (rate[1:] > rate[:-1]) & (num_kept[1:] <= ranked.num_positive)
    admitted = jnp.cumprod(rises.astype(jnp.int32))
    return ranking.counts(ranked, jnp.sum(admitted, dtype=jnp.int32))
