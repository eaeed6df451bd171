# SPDX-License-Identifier: MIT
"""The same attention under `shard_map`, over key-value heads.

Heads do not see each other: a shard takes some key-value heads of the pools
with all the query heads that share them, and nothing is communicated. With
fewer key-value heads than shards nothing is shared out; every shard keeps and
computes all of them (to share out the queries, hold each head once per shard).
"""

import functools
import math
from collections.abc import Sequence

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Shaped

from jspec.kernels.block_tree_attention import api

Axes = str | tuple[str, ...] | None  # Of a mesh.


def head_axis(num_kv_heads: int, mesh: Mesh, heads: Axes) -> Axes:
  """The axes that heads lie on; None where all shards hold all of them.

  Raises:
    ValueError: more heads than shards, but they do not share out.
  """
  if heads is None or num_kv_heads < num_shards(mesh, heads):
    return None
  if num_kv_heads % num_shards(mesh, heads):
    raise ValueError(
      f'{num_kv_heads} key-value heads do not share out over the'
      f' {num_shards(mesh, heads)} shards of {heads!r}: use a divisor of them'
    )
  return heads


def num_shards(mesh: Mesh, axes: str | tuple[str, ...]) -> int:
  """Devices of an axis of the mesh, or of several together."""
  axes = (axes,) if isinstance(axes, str) else axes
  return math.prod(mesh.shape[axis] for axis in axes)


def pool_spec(num_kv_heads: int, mesh: Mesh, heads: str | None):
  """How pools [L, P, K, R, H] are spread over the mesh."""
  return PartitionSpec(None, None, head_axis(num_kv_heads, mesh, heads))


def block_tree_attention(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  *,
  mesh: Mesh,
  heads: str | None,
  window: int | None = None,
  scale: float | None = None,
  implementation: str | Sequence[str] | None = None,
  **arrays,
) -> Float[Array, 'B T N H']:
  """`api.block_tree_attention` on a mesh.

  Args:
    q: queries of the nodes, rotated.
    k: keys of the nodes, rotated.
    v: values of the nodes.
    k_pages: key pool, spread by `pool_spec`.
    v_pages: value pool, likewise.
    mesh: the devices.
    heads: mesh axis that shares out the heads; None keeps them together.
    window: as in the api.
    scale: as in the api.
    implementation: as in the api; None is the best for a shard.
    **arrays: layer, page_ids, lengths, ancestors, num_nodes, depths, sinks,
      k_scale, v_scale.
  """
  function = functools.partial(
    api.block_tree_attention,
    window=window,
    scale=scale,
    implementation=implementation,
  )
  axis = head_axis(k_pages.shape[2], mesh, heads)
  nodes = PartitionSpec(None, None, axis)
  return _run(function, mesh, axis, nodes, (q, k, v, k_pages, v_pages), arrays)


def packed(
  q: Float[Array, 'Q N H'],
  k: Float[Array, 'Q K H'],
  v: Float[Array, 'Q K H'],
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  *,
  mesh: Mesh,
  heads: str | None,
  max_nodes: int,
  window: int | None = None,
  scale: float | None = None,
  implementation: str | Sequence[str] | None = None,
  **arrays,
) -> Float[Array, 'Q N H']:
  """`api.packed` on a mesh.

  Args:
    q: queries of all nodes, rotated.
    k: keys of all nodes, rotated.
    v: values of all nodes.
    k_pages: key pool, spread by `pool_spec`.
    v_pages: value pool, likewise.
    mesh: the devices.
    heads: mesh axis that shares out the heads; None keeps them together.
    max_nodes: as in the api.
    window: as in the api.
    scale: as in the api.
    implementation: as in the api; None is the best for a shard.
    **arrays: starts, layer, page_ids, lengths, ancestors, depths, sinks,
      k_scale, v_scale.
  """
  function = functools.partial(
    api.packed,
    max_nodes=max_nodes,
    window=window,
    scale=scale,
    implementation=implementation,
  )
  axis = head_axis(k_pages.shape[2], mesh, heads)
  nodes = PartitionSpec(None, axis)
  return _run(function, mesh, axis, nodes, (q, k, v, k_pages, v_pages), arrays)


def _run(function, mesh, axis, nodes, heads, arrays):
  """Calls an attention on every shard's heads; other arrays go in whole."""
  pools = PartitionSpec(None, None, axis)
  named = {name: x for name, x in arrays.items() if x is not None}
  specs = {name: PartitionSpec() for name in named}
  if 'sinks' in named:
    specs['sinks'] = PartitionSpec(axis)
  specs |= dict.fromkeys(named.keys() & {'k_scale', 'v_scale'}, pools)

  def local(heads, named):
    return function(*heads, **named)

  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=((nodes, nodes, nodes, pools, pools), specs),
    out_specs=nodes,
    # A Pallas call says nothing of what varies over the mesh.
    check_vma=False,
  )(heads, named)
