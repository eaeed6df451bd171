# SPDX-License-Identifier: MIT
"""Random numbers as a function of who asks, where and why.

Every draw of a request uses key(request seed, absolute position, role), where
the position is that of the token being decided. Nothing is carried along, so a
token does not depend on the neighbours in the batch, on how many drafts were
scored or on a preemption, and two tokens of one accepted block never share a
number.

A position is decided once, so a rule that looks no further than where it stops
never sees a number twice. Rules that do look further (block, traversal, and
siblings, which share a position) would: the next round decides those positions
again, and what is known of a number would bend the law. Their draws belong to
the round, key(request seed, position of the round's anchor, role, node); every
round commits a token, so its anchor's position is its own. A drafter must key
the tokens it draws by the round in the same way (`DRAFT`).
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int, Key, UInt32

DRAFT = 0  # drawing a draft token
ACCEPT = 1  # drawing a token from the target, or testing a draft token
RESIDUAL = 2  # replacing a rejected draft token
TEST = 3  # testing a node of the round
BONUS = 4  # drawing the token behind the path of the round


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


def node_uniforms(
  seeds: UInt32[Array, 'B'],
  anchor_positions: Int[Array, 'B'],
  role: int,
  num_nodes: int,
) -> Float[Array, 'B T']:
  """As `uniforms`, one for each node of the round behind the anchor."""
  keys = row_keys(seeds, anchor_positions, role)

  def of_node(key, node):
    return jax.random.uniform(jax.random.fold_in(key, node), (), jnp.float32)

  over_nodes = jax.vmap(of_node, in_axes=(None, 0))
  nodes = jnp.arange(num_nodes, dtype=jnp.int32)
  return jax.vmap(over_nodes, in_axes=(0, None))(keys, nodes)
