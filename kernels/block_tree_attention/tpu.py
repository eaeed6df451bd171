# SPDX-License-Identifier: MIT
"""Pallas TPU (Mosaic): one grid step a row, pages streamed through two buffers.

A row's live pages are copied [K, R, H] each, straight from the pools in HBM
into the side of a double buffer that is not in use; the last block of a row
already starts the first one of the next row, so copies never pause. All
key-value heads of a page come in one copy and no page is read twice.

Query heads that share a key-value head are folded into the rows of the matmul,
node by node, so the live nodes of a row are a prefix of its query rows, and
tiles behind that prefix are skipped. State per query row: running maximum m,
normaliser z, weighted sum o in float32 (the log-sum-exp merge).

The round's own nodes come first, while the first pages arrive. Their mask is
one word per node and 32 nodes: bits [s, t] = (word[t] >> s) & 1 with s on
sublanes, and a matmul with the 0/1 matrix that says which query row belongs to
which node turns them into [query, s]. No mask ever exists in HBM.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jspec.kernels.block_tree_attention import tpu_blocks, tpu_kernel

LANES = tpu_blocks.LANES
DTYPES = ('float32', 'bfloat16')
MAX_HEAD_WIDTH = 256
MAX_PAGE_IDS = 3 * 2**16  # Three quarters of the 1 MiB of every generation.


def block_tree_attention(
  q,
  k,
  v,
  k_pages,
  v_pages,
  *,
  layer,
  page_ids,
  lengths,
  ancestors,
  num_nodes,
  depths,
  window,
  sinks,
  scale,
  k_scale=None,
  v_scale=None,
  blocks: tpu_blocks.Blocks | None = None,
  vmem_bytes: int = tpu_blocks.VMEM_BYTES,
):
  """Same contract as `api.block_tree_attention`, and two more arguments.

  `blocks` are the block sizes; None chooses them by `vmem_bytes`, the VMEM that
  the kernel may use, which is never asked of a device. Refuses, by
  NotImplementedError, dtypes and page sizes that Mosaic has no tiling for and
  blocks that do not fit in VMEM.
  """
  rows, max_nodes, num_heads, width = q.shape
  num_kv_heads, page_size = k.shape[2], k_pages.shape[3]
  if k_scale is not None or v_scale is not None:
    raise NotImplementedError(
      f'block_tree_attention on TPU: pages of {k_pages.dtype} with scales; use'
      " implementation='xla'"
    )
  _check(q, k, v, k_pages, v_pages, page_ids)
  problem = tpu_blocks.Problem(
    rows=rows,
    num_nodes=max_nodes,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_width=width,
    page_size=page_size,
    pages_per_row=page_ids.shape[1],
    itemsize=q.dtype.itemsize,
  )
  if blocks is None:
    blocks = tpu_blocks.choose(problem, window, vmem_bytes)
  num_tiles, tile_nodes = problem.num_tiles, problem.tile_nodes
  num_queries = tpu_blocks.num_query_rows(problem, blocks)
  padded_nodes = problem.padded_nodes
  if num_nodes is None:
    num_nodes = jnp.full((rows,), max_nodes, jnp.int32)
  # Live nodes of each tile; a row of up to 128 nodes is one tile.
  tile_starts = jnp.arange(num_tiles, dtype=jnp.int32) * tile_nodes
  live = jnp.clip(num_nodes[:, None] - tile_starts, min=0, max=tile_nodes)

  def by_row(i, *_):
    return tpu_kernel.div(i, num_tiles), 0, 0

  def by_tile(i, *_):
    return tpu_kernel.div(i, num_tiles), 0, tpu_kernel.rem(i, num_tiles)

  words = jax.lax.bitcast_convert_type(ancestors, jnp.int32).swapaxes(1, 2)
  vectors = [_pad(words, 2, num_tiles * tile_nodes)]
  vector_specs = [pl.BlockSpec((1, words.shape[1], tile_nodes), by_tile)]
  if window is not None:
    own = depths.astype(jnp.int32)[:, None]
    vectors.append(_pad(own, 2, num_tiles * tile_nodes))
    vector_specs.append(pl.BlockSpec((1, 1, tile_nodes), by_tile))
    vectors.append(_pad(own, 2, padded_nodes))
    vector_specs.append(pl.BlockSpec((1, 1, padded_nodes), by_row))
  has_sinks = sinks is not None
  scalars = [
    jnp.reshape(layer, (1,)).astype(jnp.int32),
    jnp.clip(page_ids, min=0, max=k_pages.shape[1] - 1).reshape(-1),
    lengths.astype(jnp.int32),
    live.reshape(-1),
    *([sinks.astype(jnp.float32)] if has_sinks else []),
  ]
  node_spec = pl.BlockSpec(
    (1, num_kv_heads, padded_nodes, width),
    lambda i, *_: (*by_row(i), 0),
  )
  query_spec = pl.BlockSpec(
    (1, num_kv_heads, num_queries, width), lambda i, *_: (i, 0, 0, 0)
  )
  page = (blocks.pages * page_size, width)
  if problem.is_transposed:  # As the pool lies in memory: no copy.
    k_pages, v_pages = k_pages.swapaxes(3, 4), v_pages.swapaxes(3, 4)
    page = page[::-1]
  buffer = pltpu.VMEM((2, num_kv_heads, *page), k_pages.dtype)
  state = functools.partial(pltpu.VMEM, dtype=jnp.float32)
  kernel = functools.partial(
    tpu_kernel.kernel,
    problem=problem,
    blocks=blocks,
    window=window,
    has_sinks=has_sinks,
    scale=scale,
  )
  out = pl.pallas_call(
    kernel,
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(rows * num_tiles,),
      in_specs=[
        query_spec,
        node_spec,
        node_spec,
        *vector_specs,
        pl.BlockSpec(memory_space=pl.ANY),
        pl.BlockSpec(memory_space=pl.ANY),
      ],
      out_specs=query_spec,
      scratch_shapes=[
        buffer,
        buffer,
        state((num_kv_heads, num_queries, LANES)),
        state((num_kv_heads, num_queries, LANES)),
        state((num_kv_heads, num_queries, width)),
        state((num_queries, LANES)),
        pltpu.SMEM((1,), jnp.int32),
        pltpu.SemaphoreType.DMA((2,)),
      ],
    ),
    out_shape=jax.ShapeDtypeStruct(
      (rows * num_tiles, num_kv_heads, num_queries, width), v.dtype
    ),
    compiler_params=pltpu.CompilerParams(
      # In order: a row starts the copies of the next one.
      dimension_semantics=('arbitrary',),
      vmem_limit_bytes=vmem_bytes + tpu_blocks.VMEM_SLACK,
      # Page ids are clipped above; a check for each copy costs scalar time.
      disable_bounds_checks=True,
    ),
    cost_estimate=_cost(problem, blocks, window),
    name='block_tree_attention',
  )(
    *scalars,
    _fold(q, problem, num_queries),
    _pad(k.swapaxes(1, 2), 2, padded_nodes),
    _pad(v.swapaxes(1, 2), 2, padded_nodes),
    *vectors,
    k_pages,
    v_pages,
  )
  return _unfold(out, problem)


def _fold(q, problem, num_queries):
  """[B, T, N, H] as [B * tiles, K, nodes * G (padded), H]."""
  q = _pad(q, 1, problem.num_tiles * problem.tile_nodes)
  q = q.reshape(
    problem.rows * problem.num_tiles,
    problem.tile_nodes,
    problem.num_kv_heads,
    problem.groups,
    problem.head_width,
  ).transpose(0, 2, 1, 3, 4)
  q = q.reshape(*q.shape[:2], -1, problem.head_width)
  return _pad(q, 2, num_queries)


def _unfold(out, problem):
  out = out[:, :, : problem.tile_nodes * problem.groups]
  out = out.reshape(
    problem.rows * problem.num_tiles,
    problem.num_kv_heads,
    problem.tile_nodes,
    problem.groups,
    problem.head_width,
  ).transpose(0, 2, 1, 3, 4)
  out = out.reshape(problem.rows, -1, problem.num_heads, problem.head_width)
  return out[:, : problem.num_nodes]


def _pad(x, axis, size):
  if x.shape[axis] == size:
    return x
  padding = [(0, 0)] * x.ndim
  padding[axis] = (0, size - x.shape[axis])
  return jnp.pad(x, padding)


def _cost(problem, blocks, window):
  """What XLA is told, for a full page table: the most a call can cost."""
  pages = tpu_blocks.most_pages(problem, window)
  scores = problem.rows * problem.num_nodes * problem.num_heads
  scores *= pages * problem.page_size + problem.num_nodes
  return pl.CostEstimate(
    flops=4 * scores * problem.head_width,
    transcendentals=scores,
    bytes_accessed=tpu_blocks.moved_bytes(
      problem, blocks, problem.rows * pages
    ),
  )


def _check(q, k, v, k_pages, v_pages, page_ids):
  dtypes = sorted({str(x.dtype) for x in (q, k, v)})
  pages = sorted({str(x.dtype) for x in (k_pages, v_pages)})
  if (
    len(dtypes) > 1
    or dtypes[0] not in DTYPES
    or (pages != dtypes and pages != ['bfloat16'])
  ):
    raise NotImplementedError(
      f'block_tree_attention on TPU: nodes are {dtypes}, pages {pages}; it'
      f' takes one of {DTYPES} for nodes, and pages alike or bfloat16: cast'
      ' them'
    )
  if q.shape[-1] > MAX_HEAD_WIDTH:
    raise NotImplementedError(
      f'block_tree_attention on TPU: heads are {q.shape[-1]} wide; it takes up'
      f" to {MAX_HEAD_WIDTH}: use implementation='xla'"
    )
  page_size = k_pages.shape[3]
  if page_size % tpu_blocks.SUBLANES:
    raise NotImplementedError(
      f'block_tree_attention on TPU: pages of {page_size} rows; a page is'
      f' copied in tiles of {tpu_blocks.SUBLANES}: use a multiple of it'
    )
  if page_ids.size > MAX_PAGE_IDS:
    raise NotImplementedError(
      f'block_tree_attention on TPU: a table of {page_ids.size} pages; scalar'
      f' memory holds {MAX_PAGE_IDS}: use larger pages, fewer rows or a shorter'
      ' table'
    )
