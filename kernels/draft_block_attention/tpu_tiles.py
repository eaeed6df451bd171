# SPDX-License-Identifier: MIT
"""How the TPU kernels lay out slots, and which blocks they visit.

A tile holds `tile_slots` slots (a multiple of 128) of whole anchors; slots of
an anchor are padded to a power of two. All G query heads of a key-value head
follow each other in a tile, so column c of its queries is slot c % tile_slots:

  queries [B K H tiles*G*tile_slots]     own rows [B K tiles*tile_slots H]

Queries lie with the slots on lanes, so that everything there is one of for a
query (bounds, maximum, log-sum-exp) is a dense row vector, reductions run over
sublanes, and each matmul is one that the MXU does without a transposition.
"""

import dataclasses

import jax.numpy as jnp

LANES = 128
MAX_QUERIES = 512  # Columns of a tile that is not a single row of lanes.
MAX_SCORES = 2**18  # Elements of a score block: 1 MiB in float32.
MAX_BLOCK_LEN = 512


@dataclasses.dataclass(frozen=True)
class Tiles:
  """Sizes of a problem, padded to what Mosaic can tile."""

  rows: int
  num_anchors: int
  block_size: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  context_len: int

  @property
  def groups(self) -> int:
    """Query heads of a key-value head."""
    return self.num_heads // self.num_kv_heads

  @property
  def anchor_slots(self) -> int:
    """Slots of an anchor, padded to a power of two."""
    return 1 << (self.block_size - 1).bit_length()

  @property
  def tile_slots(self) -> int:
    """Slots of a tile: a power of two of at least 128."""
    most = max(LANES, MAX_QUERIES // self.groups)
    all_slots = self.num_anchors * self.anchor_slots
    size = LANES
    while size * 2 <= most and size < all_slots:
      size *= 2
    return size

  @property
  def tile_anchors(self) -> int:
    """Anchors of a tile."""
    return self.tile_slots // self.anchor_slots

  @property
  def tile_queries(self) -> int:
    """Query columns of a tile."""
    return self.tile_slots * self.groups

  @property
  def num_tiles(self) -> int:
    """Tiles of a batch row."""
    return -(-self.num_anchors // self.tile_anchors)

  @property
  def block_len(self) -> int:
    """Context rows of a block, a multiple of 128."""
    most = min(MAX_BLOCK_LEN, max(LANES, MAX_SCORES // self.tile_queries))
    return min(most // LANES, -(-self.context_len // LANES)) * LANES

  @property
  def num_blocks(self) -> int:
    """Blocks of the context."""
    return -(-self.context_len // self.block_len)


def make(q, k, context_k) -> Tiles:
  """The sizes of these arrays."""
  rows, num_anchors, block_size, num_heads, width = q.shape
  return Tiles(
    rows,
    num_anchors,
    block_size,
    num_heads,
    k.shape[3],
    width,
    context_k.shape[1],
  )


def fold_queries(q, t: Tiles):
  """[B A T N H] -> [B K H columns]."""
  x = _pad_slots(q, t)
  x = x.reshape(
    t.rows,
    t.num_tiles,
    t.tile_slots,
    t.num_kv_heads,
    t.groups,
    t.head_width,
  ).transpose(0, 3, 5, 1, 4, 2)
  return x.reshape(t.rows, t.num_kv_heads, t.head_width, -1)


def unfold_queries(x, t: Tiles):
  """The inverse of `fold_queries`."""
  x = x.reshape(
    t.rows,
    t.num_kv_heads,
    t.head_width,
    t.num_tiles,
    t.groups,
    t.tile_slots,
  ).transpose(0, 3, 5, 1, 4, 2)
  x = x.reshape(t.rows, -1, t.anchor_slots, t.num_heads, t.head_width)
  return x[:, : t.num_anchors, : t.block_size]


def fold_own(k, t: Tiles):
  """[B A T K H] -> [B K slots H]."""
  x = _pad_slots(k, t)
  x = x.reshape(t.rows, -1, t.num_kv_heads, t.head_width)
  return x.swapaxes(1, 2)


def unfold_own(x, t: Tiles):
  """[B K H slots] -> [B A T K H]."""
  x = x.transpose(0, 3, 1, 2)
  x = x.reshape(t.rows, -1, t.anchor_slots, t.num_kv_heads, t.head_width)
  return x[:, : t.num_anchors, : t.block_size]


def fold_context(rows, t: Tiles):
  """[B S K H] -> [B K S H], padded to whole blocks."""
  padding = t.num_blocks * t.block_len - t.context_len
  return jnp.pad(rows, ((0, 0), (0, padding), (0, 0), (0, 0))).swapaxes(1, 2)


def unfold_context(x, t: Tiles):
  """[B K H S] -> [B S K H]."""
  return x.transpose(0, 3, 1, 2)[:, : t.context_len]


def bounds(first, end, t: Tiles):
  """First visible row and the end of every column, [B 2 columns]."""
  end = jnp.broadcast_to(end[..., None], first.shape)
  both = jnp.stack([first, end], axis=-1)[..., None]
  both = _pad_slots(both, t).reshape(t.rows, t.num_tiles, 1, t.tile_slots, 2)
  both = jnp.broadcast_to(
    both, (t.rows, t.num_tiles, t.groups, t.tile_slots, 2)
  )
  return both.reshape(t.rows, -1, 2).swapaxes(1, 2)


def visits(first, end, t: Tiles):
  """The blocks each tile visits, and the tiles that visit each block.

  Returns:
    [B, tiles] first block and end; [B, blocks] first tile and end. Tiles in
    between that do not see the block show in the former.
  """
  padding = ((0, 0), (0, t.num_tiles * t.tile_anchors - t.num_anchors))
  shape = (t.rows, t.num_tiles, t.tile_anchors)
  lowest = jnp.min(jnp.where(end[..., None] > first, first, 2**30), axis=-1)
  lowest = jnp.pad(lowest, padding, constant_values=2**30).reshape(shape)
  end = jnp.pad(end, padding).reshape(shape)
  stop_block = -(-jnp.max(end, axis=-1) // t.block_len)
  first_block = jnp.min(lowest, axis=-1) // t.block_len
  first_block = jnp.minimum(first_block, stop_block)

  block = jnp.arange(t.num_blocks)[:, None]
  is_seen = first_block[:, None] <= block
  is_seen &= block < stop_block[:, None]
  tile = jnp.arange(t.num_tiles)
  stop_tile = jnp.max(jnp.where(is_seen, tile + 1, 0), axis=-1)
  first_tile = jnp.min(jnp.where(is_seen, tile, t.num_tiles), axis=-1)
  first_tile = jnp.minimum(first_tile, stop_tile)
  found = (first_block, stop_block, first_tile, stop_tile)
  return tuple(x.astype(jnp.int32) for x in found)


def _pad_slots(x, t: Tiles):
  anchors = t.num_tiles * t.tile_anchors - t.num_anchors
  slots = t.anchor_slots - t.block_size
  return jnp.pad(x, ((0, 0), (0, anchors), (0, slots), (0, 0), (0, 0)))
