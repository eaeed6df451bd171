# SPDX-License-Identifier: MIT
r"""LibraSpec with its constant read from the measured table.

Going on from i - 1 to d drafts pays where it brings tokens faster than so far,

  P_i + ... + P_d          tau_{i-1}
  --------------------  >  ---------       tau_j = 1 + P_1 + ... + P_j
  T(d) - T(i-1)            T(i-1)          T(j) = a round of j drafts a row

(arXiv 2608.08721, theorem 3.2). With e_i the farthest d that still pays, the
depth is min_i e_i. The paper estimates e_i with one constant; with T at hand it
is known, and the minimum is the row's optimum d* on any staircase: e_i >= d*
for i <= d*, because going there pays; e_i >= i - 1 for the others; and nothing
pays from d* on. So the plan is one argmax (`alone.best`).

It plans over the drafts at hand; past them nothing is known about P, so only
the paper's form (`libraspec`) asks a drafter to go on.
"""

import dataclasses

import jax.numpy as jnp

from jspec import errors
from jspec.depth import alone, base
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraSpecCalibrated:
  """LibraSpec's criterion on measured costs, for chains; may keep no draft.

  Attributes:
    max_depth: no row goes deeper.
  """

  max_depth: int = 24

  def __post_init__(self):
    if self.max_depth < 1:
      raise errors.UserError(
        f'libraspec_calibrated: max_depth={self.max_depth}; give 1 or more'
      )

  @property
  def reads(self) -> str:
    return base.ALL

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    limits = jnp.minimum(load.limits, self.max_depth)
    scores = base.clean(scores, dataclasses.replace(load, limits=limits))
    return alone.best(scores, load, costs)
