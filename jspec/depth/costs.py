# SPDX-License-Identifier: MIT
"""What a round costs, as an input of the plan.

A round verifies one of K compiled budgets, so its time is a staircase in the
nodes it really holds:

  seconds            +---
              +------+          budgets  8  16  32
        +-----+
        0     8     16    32    nodes

The table holds the steps. It is a pytree of arrays: other costs, same program.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jspec import errors
from jspec.typing import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Costs:
  """Seconds of a round at the present rows and context.

  Attributes:
    nodes: total nodes of each compiled budget (anchors of all rows included),
      ascending.
    verify_s: seconds to verify that budget, non-decreasing.
    draft_s: seconds of proposing; spent whatever the plan, so it only dampens
      how much a short verification can gain.
  """

  nodes: Int[Array, 'K']
  verify_s: Float[Array, 'K']
  draft_s: Float[Array, '']

  def of(self, total_nodes: Int[Array, '...']) -> Float[Array, '...']:
    """Seconds to verify so many nodes; infinite where no budget holds them."""
    step = jnp.searchsorted(self.nodes, total_nodes, side='left')
    last = self.nodes.shape[0] - 1
    seconds = self.verify_s[jnp.minimum(step, last)]
    return jnp.where(step <= last, seconds, jnp.inf)

  def round(self, total_nodes: Int[Array, '...']) -> Float[Array, '...']:
    """Seconds of the whole round: proposing and verifying."""
    return self.draft_s + self.of(total_nodes)


def make(
  nodes: Sequence[int], verify_s: Sequence[float], draft_s: float
) -> Costs:
  """The table of known costs, checked.

  Raises:
    UserError: no budget, budgets that do not ascend, or times that fall or are
      not positive. Without costs every draft looks free, so there is no empty
      table: measure one, or plan with `static`.
  """
  if not len(nodes) or len(nodes) != len(verify_s):
    raise errors.UserError(
      f'costs of {len(nodes)} budgets with {len(verify_s)} times: give one'
      ' measured time for each budget, and at least one (the policy `static`'
      ' alone plans without costs)'
    )
  if nodes[0] < 1 or np.any(np.diff(nodes) <= 0):
    raise errors.UserError(
      f'budgets {list(nodes)} do not ascend from 1 or more: sort them and name'
      ' each once'
    )
  seconds = np.asarray([*verify_s, draft_s], float)
  if not np.all(np.isfinite(seconds)) or seconds[0] <= 0 or draft_s < 0:
    raise errors.UserError(
      f'verify_s {list(verify_s)} and draft_s {draft_s}: times are finite,'
      ' verifying takes more than 0 s and proposing not less'
    )
  if np.any(np.diff(seconds[:-1]) < 0):
    raise errors.UserError(
      f'verify_s {list(verify_s)} falls although the nodes {list(nodes)} grow:'
      ' make it monotone first (`cost_table` does)'
    )
  # Unlike `jnp.asarray`, this compiles nothing; each sending has its price.
  return Costs(
    *jax.device_put(
      (
        np.asarray(nodes, np.int32),
        np.asarray(verify_s, np.float32),
        np.float32(draft_s),
      )
    )
  )
