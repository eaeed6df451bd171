# SPDX-License-Identifier: MIT
"""Who sees whom in SpecBlock, in training and in decoding.

Row i is the position whose features it has; its slots are (i, 0) .. (i, K-1).

  first block    (i, k) sees all slots of rows before i, and (i, 0) .. (i, k):
                 plain causal order over the slots of all rows
  later blocks   of row i see the first block's slots of rows before i; of each
                 earlier block of row i the slots before the one it was started
                 behind; and their own slots up to and with themselves

In decoding the first block's rows are committed pages. A later block belongs to
a branch and other rows have no such block, so it sees nothing else. The
published training code also lets a later block see the same block of earlier
rows (`cross_rows`): a mismatch that is kept as a choice (SpecBlock, arXiv
2605.07243).
"""

import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.drafters import slot_pages, specblock_layer
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.nn import prefix_attention
from jspec.typing import Array, Bool, Int, UInt32


def train_first(segments: Int[Array, 'B S']) -> specblock_layer.Attend:
  """The first block on every row of packed sequences."""
  rows = jnp.arange(segments.shape[1])[None]

  def attend(layer, q, k, v):
    del layer
    num_slots = q.shape[2]
    return prefix_attention.prefix_attention(
      q,
      k,
      v,
      _flat(k),
      _flat(v),
      own=jnp.tri(num_slots, dtype=bool),
      limits=jnp.broadcast_to(rows * num_slots, segments.shape),
      row_segments=segments,
      segments=jnp.repeat(segments, num_slots, axis=1),
    )

  return attend


def train_later(
  first: specblock_layer.Rows,
  earlier: list[specblock_layer.Rows],
  counts: list[Int[Array, '']],
  index: Int[Array, 'B A'],
  segments: Int[Array, 'B S'],
  *,
  cross_rows: bool,
) -> specblock_layer.Attend:
  """A later block on chosen rows.

  Args:
    first: the first block's key and value rows, of all S.
    earlier: those of all earlier blocks, the first among them, of the chosen.
    counts: how many slots of each earlier block precede this one.
    index: the chosen rows, -1 where there is none.
    segments: document of every row.
    cross_rows: whether the block is seen by later rows; needs A = S.
  """

  def attend(layer, q, k, v):
    num_slots = q.shape[2]
    own = later_mask(jnp.stack(counts), num_slots)
    before = [block[layer] for block in earlier]
    own_k = jnp.concatenate([*(x[0] for x in before), k], axis=2)
    own_v = jnp.concatenate([*(x[1] for x in before), v], axis=2)
    context_k, context_v = first[layer]
    if cross_rows:
      context_k = jnp.concatenate([context_k, k], axis=2)
      context_v = jnp.concatenate([context_v, v], axis=2)
    size = context_k.shape[2]
    chosen = jnp.maximum(index, 0)
    return prefix_attention.prefix_attention(
      q,
      own_k,
      own_v,
      _flat(context_k),
      _flat(context_v),
      own=own,
      limits=jnp.where(index < 0, -1, index * size),
      row_segments=jnp.take_along_axis(segments, chosen, axis=1),
      segments=jnp.repeat(segments, size, axis=1),
    )

  return attend


def later_mask(
  counts: Int[Array, 'blocks'], num_slots: int
) -> Bool[Array, 'slots U']:
  """Own keys a later block sees: those of earlier blocks, then its own."""
  slot = jnp.arange(num_slots)
  earlier = (slot < counts[:, None]).reshape(-1)
  earlier = jnp.broadcast_to(earlier, (num_slots, earlier.size))
  return jnp.concatenate([earlier, slot[:, None] >= slot], axis=1)


def commit(
  pages: paged.Pages, table: paged.PageTable, num_rows: Int[Array, 'B']
) -> specblock_layer.Attend:
  """The first block on rows behind the committed ones."""

  def attend(layer, q, k, v):
    rows, num_positions, num_slots = q.shape[:3]
    size = num_positions * num_slots
    of = slot_pages.table(table, num_slots)
    mixed = block_tree_attention.block_tree_attention(
      _flat(q),
      _flat(k),
      _flat(v),
      pages.k,
      pages.v,
      layer=jnp.int32(layer),
      page_ids=of.page_ids,
      lengths=of.lengths,
      ancestors=tree.chain_words(rows, size),
      num_nodes=num_rows * num_slots,
    )
    return mixed.reshape(q.shape)

  return attend


def branches(
  pages: paged.Pages,
  table: paged.PageTable,
  slots: Int[Array, 'B starts'],
  num_slots: int,
) -> specblock_layer.Attend:
  """The second block, of every branch that starts behind one of `slots`.

  Nodes are the newest row's slots, which not all branches see and hence cannot
  be read from pages, and then the branches.
  """
  newest = slot_pages.newest(pages, table, num_slots)
  before = table.lengths - 1
  words = _pack(branch_mask(slots, before >= 0, num_slots))

  def attend(layer, q, k, v):
    nodes = [
      jnp.concatenate([of_row[layer], _flat(of_branch)], axis=1)
      for of_row, of_branch in zip(newest, (k, v), strict=True)
    ]
    # The kernel takes a query for every node; the newest row's are not needed.
    idle = ((0, 0), (num_slots, 0), (0, 0), (0, 0))
    mixed = block_tree_attention.block_tree_attention(
      jnp.pad(_flat(q), idle),
      *nodes,
      pages.k,
      pages.v,
      layer=jnp.int32(layer),
      page_ids=table.page_ids,
      lengths=jnp.maximum(before, 0) * num_slots,
      ancestors=words,
    )
    return mixed[:, num_slots:].reshape(q.shape)

  return attend


def branch_mask(
  slots: Int[Array, 'B starts'], has_row: Bool[Array, 'B'], num_slots: int
) -> Bool[Array, 'B U U']:
  """What the newest row's slots and the branches' see of each other.

  Args:
    slots: slot of the newest row that a branch starts behind; seen, as are
      those before it.
    has_row: whether there is a newest row.
    num_slots: of a block.
  """
  rows, starts = slots.shape
  size = (starts + 1) * num_slots
  slot = jnp.arange(num_slots)
  of_row = (slot <= slots[..., None]) & has_row[:, None, None]
  of_row = jnp.repeat(of_row, num_slots, axis=1)
  block = jnp.arange(size) // num_slots
  own = (block[:, None] == block) & jnp.tri(size, dtype=bool)
  mask = jnp.broadcast_to(own, (rows, size, size))
  return mask.at[:, num_slots:, :num_slots].set(of_row)


def _pack(mask: Bool[Array, 'B U U']) -> UInt32[Array, 'B U W']:
  """Ancestor words of a mask."""
  size = mask.shape[-1]
  missing = -size % tree.WORD_BITS
  bits = jnp.pad(mask, ((0, 0), (0, 0), (0, missing))).astype(jnp.uint32)
  bits = bits.reshape(*mask.shape[:2], -1, tree.WORD_BITS)
  return jnp.sum(
    bits << jnp.arange(tree.WORD_BITS, dtype=jnp.uint32),
    axis=-1,
    dtype=jnp.uint32,
  )


def _flat(heads: Array) -> Array:
  """[B, R, slots, heads, H] -> [B, R slots, heads, H]."""
  return heads.reshape(heads.shape[0], -1, *heads.shape[3:])
