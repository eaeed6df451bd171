# SPDX-License-Identifier: MIT
"""The best number of drafts of a row that chooses for itself.

  argmax_n (1 + sum of its n first scores) / round(A (1 + n))

A row does not know what the others choose, so it plans as if all A decoding
rows took as many. With A = 1 nothing is assumed.
"""

import jax.numpy as jnp

from jspec.depth import base
from jspec.depth.costs import Costs
from jspec.typing import Array, Float, Int


def best(
  scores: Float[Array, 'B G'], load: base.Load, costs: Costs
) -> Int[Array, 'B']:
  """Of clean scores; of equals the fewest drafts, and all rows together fit."""
  num_active = jnp.sum(load.is_active, dtype=jnp.int32)
  gained = jnp.pad(jnp.cumsum(scores, axis=1), ((0, 0), (1, 0)))
  num_nodes = num_active * (1 + jnp.arange(scores.shape[1] + 1))
  rate = (1 + gained) / costs.round(num_nodes)
  chosen = jnp.argmax(rate, axis=1).astype(jnp.int32)
  return jnp.where(load.is_active, chosen, 0)
