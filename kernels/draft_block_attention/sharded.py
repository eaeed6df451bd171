# SPDX-License-Identifier: MIT
"""The same attention under `shard_map`, over key-value heads and batch rows.

Heads do not see each other, so a shard takes some key-value heads with all the
query heads that share them, and nothing is communicated. With fewer key-value
heads than shards each is repeated on as many shards as divide its query heads
(its gradient is summed over them); where that leaves a remainder, all shards
compute all heads.
"""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from jspec.kernels.block_tree_attention import sharded
from jspec.kernels.draft_block_attention import api


def draft_block_attention(
  q: Float[Array, 'B A T N H'],
  k: Float[Array, 'B A T K H'],
  v: Float[Array, 'B A T K H'],
  context_k: Float[Array, 'B S K H'],
  context_v: Float[Array, 'B S K H'],
  *,
  anchors: Int[Array, 'B A'],
  segments: Int[Array, 'B S'],
  mesh: Mesh,
  heads: sharded.Axes = None,
  rows: str | tuple[str, ...] | None = None,
  blocks: str | None = None,
  **named,
) -> Float[Array, 'B A T N H']:
  """`api.draft_block_attention` on a mesh.

  Args:
    q: queries of the slots, rotated.
    k: keys of the slots, rotated.
    v: values of the slots.
    context_k: keys of the sequence, rotated.
    context_v: values of the sequence.
    anchors: row of each anchor, negative for none.
    segments: document of each row, 0 for padding.
    mesh: the devices.
    heads: mesh axes that share out the heads; None keeps them together.
    rows: mesh axes that share out the batch rows.
    blocks: mesh axis that shares out the anchors; each device then has the
      context of its rows whole.
    **named: window, scale, implementation (None is the best for a shard).

  Raises:
    ValueError: more key-value heads than shards, but they do not share out.
  """
  arrays = [q, k, v, context_k, context_v]
  num_heads, num_kv_heads = q.shape[3], k.shape[3]
  axis = sharded.head_axis(num_kv_heads, mesh, heads)
  if heads is not None and axis is None:
    num_shards = sharded.num_shards(mesh, heads)
    repeats, rest = divmod(num_shards, num_kv_heads)
    if not rest and num_heads % num_shards == 0:
      arrays[1:] = [jnp.repeat(x, repeats, axis=-2) for x in arrays[1:]]
      axis = heads
  block = PartitionSpec(rows, blocks, None, axis)
  context = PartitionSpec(rows, None, axis)
  of_blocks, of_rows = PartitionSpec(rows, blocks), PartitionSpec(rows)

  def local(*arrays):
    *arrays, anchors, segments = arrays
    return api.draft_block_attention(
      *arrays, anchors=anchors, segments=segments, **named
    )

  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(block, block, block, context, context, of_blocks, of_rows),
    out_specs=block,
    # A Pallas call says nothing of what varies over the mesh.
    check_vma=False,
  )(*arrays, anchors, segments)
