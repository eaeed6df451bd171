# SPDX-License-Identifier: MIT
"""Key and value rows of drafts that are not committed, and attention over them.

A drafter that is run on its own nodes, level by level, writes each level's rows
once, where they stay until the round is over:

  rows     level 0: 0 .. W-1    level 1: W .. 2W-1    ...    U in all
  a node   sees the committed pages, and those scratch rows that its ancestor
           words name (itself among them, as `trees.expansion.Beam` says)

Nothing is ever rolled back: the next round starts from empty rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.typing import Array, Float, Int, UInt32


class Rows(NamedTuple):
  """Scratch rows of one layer."""

  k: Float[Array, 'B U K H']
  v: Float[Array, 'B U K H']


def empty(num_rows: int, size: int, pages: paged.Pages) -> Rows:
  """`size` unwritten rows for each batch row, shaped as those of the pages."""
  _, _, num_kv_heads, _, width = pages.k.shape
  shape = (num_rows, size, num_kv_heads, width)
  return Rows(jnp.zeros(shape, pages.k.dtype), jnp.zeros(shape, pages.v.dtype))


def write(
  rows: Rows,
  k: Float[Array, 'B W K H'],
  v: Float[Array, 'B W K H'],
  first: Int[Array, ''] | int,
) -> Rows:
  """Puts a level's rows at `first` onwards."""
  return Rows(
    jax.lax.dynamic_update_slice_in_dim(rows.k, k, first, axis=1),
    jax.lax.dynamic_update_slice_in_dim(rows.v, v, first, axis=1),
  )


def attend(
  q: Float[Array, 'B W N H'],
  scratch_k: Float[Array, 'B U K H'],
  scratch_v: Float[Array, 'B U K H'],
  ancestors: UInt32[Array, 'B W words'],
  pages: paged.Pages,
  table: paged.PageTable,
  *,
  layer: Int[Array, ''] | int,
  first: Int[Array, ''] | int,
) -> Float[Array, 'B W N H']:
  """Attends over the committed pages and over scratch rows.

  Args:
    q: queries of one level, rotated.
    scratch_k: keys of all levels up to this one, its own already written; what
      no node names may be anything finite.
    scratch_v: their values.
    ancestors: which scratch rows each node sees, 32 rows a word; every node
      sees itself.
    pages: the committed rows; all of a row's tokens are seen.
    table: of the pages.
    layer: of the pages.
    first: scratch row of the level's first node.
  """
  # The kernel wants as many queries as own rows, each seeing itself; those of
  # other levels go along and are cut off.
  rows, size = scratch_k.shape[:2]
  width = q.shape[1]
  padded = jnp.zeros((rows, size, *q.shape[2:]), q.dtype)
  words = tree.ancestor_words(jnp.full((rows, size), -1, jnp.int32))
  out = block_tree_attention.block_tree_attention(
    jax.lax.dynamic_update_slice_in_dim(padded, q, first, axis=1),
    scratch_k,
    scratch_v,
    pages.k,
    pages.v,
    layer=jnp.asarray(layer, jnp.int32),
    page_ids=table.page_ids,
    lengths=table.lengths,
    ancestors=jax.lax.dynamic_update_slice_in_dim(
      words, ancestors, first, axis=1
    ),
  )
  return jax.lax.dynamic_slice_in_dim(out, first, width, axis=1)
