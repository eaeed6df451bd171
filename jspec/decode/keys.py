# SPDX-License-Identifier: MIT
"""Random numbers as a function of who asks, where and why.

Every draw of a request uses key(request seed, absolute position, role), where
the position is that of the token being decided. Nothing is carried along, so a
token does not depend on the neighbours in the batch, on how many drafts were
scored or on a preemption, and two tokens of one accepted block never share a
number.
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int, Key, UInt32

DRAFT = 0  # drawing a draft token
ACCEPT = 1  # drawing a token from the target, or testing a draft token
RESIDUAL = 2  # replacing a rejected draft token


def row_keys(
  seeds: UInt32[Array, 'B'], positions: Int[Array, 'B'], role: int
) -> Key[Array, 'B']:
  """The key of each row's decision at `positions`, for one of the roles."""

  def one(seed, position):
    # The generator is named, so a changed default cannot change the tokens.
    key = jax.random.key(seed, impl='threefry2x32')
    return jax.random.fold_in(jax.random.fold_in(key, position), role)

  return jax.vmap(one)(seeds, positions)


def uniforms(
  seeds: UInt32[Array, 'B'], positions: Int[Array, 'B'], role: int
) -> Float[Array, 'B']:
  """One float32 in [0, 1) for each row, a multiple of 2**-23."""
  keys = row_keys(seeds, positions, role)
  return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys)
