# SPDX-License-Identifier: MIT
"""CaDDTree: as many DDTree nodes as pay.

The nodes of a DDTree come by falling path probability, so the best tree of n
nodes is the first n and

  theta(n) = (1 + Phi(n)) / (draft_s + C(n + 1)),   Phi(n) = sum of n scores

needs one pass (arXiv 2606.01813). The paper stops where theta first falls,
which is the maximum for convex costs. Compiled budgets are a staircase, so here
every n is tried.

`row`: each row chooses alone, as if all decoding rows took as many nodes; with
one row this is the paper's rule. `batch`: one list of all rows.
"""

import dataclasses

import jax.numpy as jnp

from jspec import errors
from jspec.depth import alone, base, ranking
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int

SCOPES = ('row', 'batch')


@dataclasses.dataclass(frozen=True, kw_only=True)
class CaDDTree:
  """Nodes by path probability, as many as maximise tokens per second."""

  scope: str = 'row'

  def __post_init__(self):
    if self.scope not in SCOPES:
      raise errors.UserError(
        f'caddtree: scope={self.scope!r}; give {" or ".join(SCOPES)}'
      )

  @property
  def reads(self) -> str:
    return base.ALL

  def plan(
    self, scores: Float[Array, 'B G'], load: base.Load, costs: Costs
  ) -> Int[Array, 'B']:
    scores = base.clean(scores, load)
    if self.scope == 'row':
      return alone.best(scores, load, costs)
    num_active = jnp.sum(load.is_active, dtype=jnp.int32)
    ranked = ranking.rank(scores)
    num_kept = jnp.arange(ranked.gained.shape[0])
    tokens = num_active + ranked.gained
    rate = tokens / costs.round(num_active + num_kept)
    return ranking.counts(ranked, jnp.argmax(rate))
