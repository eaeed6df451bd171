# SPDX-License-Identifier: MIT
"""`kv_commit` under `shard_map`: each shard writes the heads it holds."""

from collections.abc import Sequence

import jax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Bool, Int, Shaped

from jspec.kernels.block_tree_attention import sharded
from jspec.kernels.kv_commit import api


def kv_commit(
  k_pages: Shaped[Array, 'L P K R H'],
  v_pages: Shaped[Array, 'L P K R H'],
  k: Shaped[Array, 'L B T K H'],
  v: Shaped[Array, 'L B T K H'],
  path: Int[Array, 'B G'],
  page_ids: Int[Array, 'B M'],
  lengths: Int[Array, 'B'],
  num_rows: Int[Array, 'B'],
  *,
  mesh: Mesh,
  heads: str | None,
  implementation: str | Sequence[str] | None = None,
) -> tuple[
  Shaped[Array, 'L P K R H'], Shaped[Array, 'L P K R H'], Bool[Array, '']
]:
  """`api.kv_commit` on a mesh.

  Args:
    k_pages: key pool, spread by `block_tree_attention.sharded.pool_spec`.
    v_pages: value pool, likewise.
    k: keys of the round's nodes, rotated.
    v: values of the round's nodes.
    path: node indices, anchor first.
    page_ids: pages of each row in order of position.
    lengths: committed tokens of each row before the write.
    num_rows: rows to write.
    mesh: the devices.
    heads: mesh axis that shares out the heads; None keeps them together.
    implementation: as in the api; None is the best for a shard.
  """
  axis = sharded.head_axis(k_pages.shape[2], mesh, heads)
  pool = PartitionSpec(None, None, axis)
  node = PartitionSpec(None, None, None, axis)
  table = PartitionSpec()

  def local(*arrays):
    return api.kv_commit(*arrays, implementation=implementation)

  return jax.shard_map(
    local,
    mesh=mesh,
    in_specs=(pool, pool, node, node, table, table, table, table),
    out_specs=(pool, pool, table),
    # A Pallas call says nothing of what varies over the mesh.
    check_vma=False,
  )(k_pages, v_pages, k, v, path, page_ids, lengths, num_rows)
