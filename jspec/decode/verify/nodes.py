# SPDX-License-Identifier: MIT
"""Looking up the nodes of drafts, each row at a node of its own."""

import dataclasses

import jax.numpy as jnp

from jspec import tree
from jspec.typing import Array, Bool, Int


def take(x: Array, node: Int[Array, 'B']) -> Array:
  """Entry `node[b]` of every row b: from [B, T, ...] to [B, ...]."""
  index = node.reshape(node.shape + (1,) * (x.ndim - 1))
  return jnp.take_along_axis(x, index, axis=1, mode='clip')[:, 0]


def is_live(draft: tree.Draft) -> Bool[Array, 'B T']:
  """The draft tokens that take part: not the anchor, not padding."""
  node = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  return (node > 0) & (node < draft.num_nodes[:, None])


def next_child(
  draft: tree.Draft, node: Int[Array, 'B'], after: Int[Array, 'B']
) -> Int[Array, 'B']:
  """The first live child of `node` behind node `after`; T where none is."""
  index = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  is_child = (draft.parents == node[:, None]) & (index > after[:, None])
  return _first(is_child & is_live(draft))


def child_with(
  draft: tree.Draft, node: Int[Array, 'B'], token: Int[Array, 'B']
) -> Int[Array, 'B']:
  """The first live child of `node` that holds `token`; T where none does."""
  is_child = draft.parents == node[:, None]
  is_child &= draft.tokens == token[:, None]
  return _first(is_child & is_live(draft))


def has_children(draft: tree.Draft) -> Bool[Array, 'B T']:
  """The nodes that have a live child."""
  num_rows, num_nodes = draft.tokens.shape
  parents = jnp.where(is_live(draft), draft.parents, num_nodes)
  rows = jnp.arange(num_rows)[:, None]
  nothing = jnp.zeros((num_rows, num_nodes), bool)
  return nothing.at[rows, parents].set(True, mode='drop')


def chain_only(draft: tree.Draft) -> tree.Draft:
  """Ends every row before the first node whose parent is not the one before.

  A chain stays what it is. The shape alone decides, so what is left out does
  not depend on the tokens drafted.
  """
  index = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  is_next = draft.parents == index - 1
  length = jnp.sum(jnp.cumprod(is_next.astype(jnp.int32), axis=1), axis=1)
  return dataclasses.replace(
    draft, num_nodes=jnp.minimum(draft.num_nodes, length).astype(jnp.int32)
  )


def _first(is_true):
  """Index of the first True of each row; the row's length where none is."""
  size = is_true.shape[1]
  index = jnp.arange(size, dtype=jnp.int32)
  return jnp.min(jnp.where(is_true, index, size), axis=1)
