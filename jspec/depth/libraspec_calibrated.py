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

Past the drafts at hand nothing is known about P, and there the paper's form is
needed: e_i = i - 1 + alpha_i S_i, alpha_i = P_{i-1} T(i-1) / (c tau_{i-1}),
with c the seconds per draft of doubling the draft.
"""

import dataclasses

import jax.numpy as jnp

from jspec import errors
from jspec.depth import alone, base, libraspec
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LibraSpecCalibrated:
  """LibraSpec's criterion on measured costs, for chains; may keep no draft.

  Attributes:
    max_depth: no row goes deeper, extended or not.
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
    return alone.best(self._clean(scores, load), load, costs)

  def extension(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    """Drafts that each row wants on top of those it has.

    0 in a row that keeps fewer than it has, and where the table ends.
    `load.limits` is what the row could use, not what it has.
    """
    scores = self._clean(scores, load)
    num_active = jnp.sum(load.is_active, dtype=jnp.int32)
    depth = jnp.sum(scores > 0, axis=1, dtype=jnp.int32)
    fits = costs.nodes[-1] // jnp.maximum(num_active, 1) - 1

    def seconds(num_drafts):
      return costs.round(num_active * (1 + jnp.minimum(num_drafts, fits)))

    number = jnp.arange(1, scores.shape[1] + 1)
    inside = number <= depth[:, None]
    # Below one draft the table may say nothing at all: then nobody extends.
    longer = jnp.maximum(jnp.minimum(2 * depth, fits) - depth, 1)
    extra = (seconds(2 * depth) - seconds(depth)) / longer
    tau = 1 + jnp.cumsum(scores, axis=1) - scores  # tau_{i-1}
    worth = libraspec.rest(scores) * seconds(number - 1) / tau
    reach = number - 1 + worth / jnp.maximum(extra, 1e-12)[:, None]
    least = jnp.min(jnp.where(inside, reach, jnp.inf), axis=1)
    most = jnp.minimum(jnp.minimum(load.limits, self.max_depth), fits)
    wanted = jnp.floor(jnp.minimum(least, most)).astype(jnp.int32)
    is_whole = (depth > 0) & (alone.best(scores, load, costs) == depth)
    return jnp.where(is_whole, jnp.maximum(wanted - depth, 0), 0)

  def _clean(self, scores, load):
    limits = jnp.minimum(load.limits, self.max_depth)
    return base.clean(scores, dataclasses.replace(load, limits=limits))
