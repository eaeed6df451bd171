# SPDX-License-Identifier: MIT
"""The best plan in hindsight: what a policy could have reached, for benchmarks.

Knowing how many drafts of each row the target accepts, the scores are certain:

  accepted  2 0   ->   scores  1 1 0 0   and the plan is D-cut's, exact for any
                               0 0 0 0   table
"""

import jax.numpy as jnp

from jspec.depth import base, dcut
from jspec.depth.costs import Costs
from jspec.typing import Array, Int


def plan(
  accepted: Int[Array, 'B'], load: base.Load, costs: Costs, num_drafts: int
) -> Int[Array, 'B']:
  """Counts that maximise (A + sum min(counts, accepted)) / seconds.

  Args:
    accepted: drafts of each chain that the target accepts when all are
      verified.
    load: who decodes; A rows.
    costs: of the round.
    num_drafts: length of the chains, static.
  """
  is_accepted = jnp.arange(num_drafts) < accepted[:, None]
  scores = is_accepted.astype(jnp.float32)
  return dcut.DCut().plan(scores, load, costs)
