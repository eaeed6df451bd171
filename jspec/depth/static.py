# SPDX-License-Identifier: MIT
"""The same depth in every row and round: the baseline, and always lossless.

No score decides anything, so it is safe with any drafts under any rule. Where
the rows together exceed the largest budget, they are cut level by level.
"""

import dataclasses

import jax.numpy as jnp

from jspec import errors
from jspec.depth import base, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Static:
  """`depth` drafts a row, or all that there are (None)."""

  depth: int | None = None

  def __post_init__(self):
    if self.depth is not None and self.depth < 0:
      raise errors.UserError(
        f'static: depth={self.depth}; give 0 (no drafts) or more, or leave it'
        ' out for the full block'
      )

  @property
  def reads(self) -> str:
    return base.NONE

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    most = scores.shape[1] if self.depth is None else self.depth
    # Not even whether a score is 0 may count (only NaN, the mark of a fault).
    usable = load.is_active & ~base.is_missing(scores, load)
    limits = jnp.minimum(load.limits, scores.shape[1])
    available = jnp.where(usable, limits, 0)
    return ranking.fit(
      jnp.minimum(available, most),
      jnp.ones_like(scores),  # Equal, so that depth alone decides.
      jnp.sum(load.is_active, dtype=jnp.int32),
      costs.nodes[-1],
    )
