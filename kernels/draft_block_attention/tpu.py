# SPDX-License-Identifier: MIT
"""Pallas TPU (Mosaic): tiles of anchors stream the context blocks they see.

Forward and gradient are flash kernels: scores exist a block at a time, and the
gradient recomputes them from the log-sum-exp. What makes it cheap here is that
a slot's context is one interval (`spans`): a tile visits the blocks from the
first to the last row that any of its anchors sees and no other, and a context
block is visited, for its gradient, by those tiles only. `tpu_tiles` says how
things lie in memory, `tpu_kernel` what is done with them.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jspec.kernels.draft_block_attention import spans, tpu_kernel, tpu_tiles

DTYPES = ('float32', 'bfloat16')
VMEM_BYTES = 32 * 2**20  # Of the 64 MiB that the smallest of v5p to 7x has.


def draft_block_attention(
  q, k, v, context_k, context_v, *, anchors, segments, window, scale
):
  """Same contract as `api.draft_block_attention`.

  Raises:
    NotImplementedError: a dtype, block or number of heads it has no tiles for.
  """
  tiles = tpu_tiles.make(q, k, context_k)
  _check(tiles, q, k, v, context_k, context_v)
  first, end = spans.visible(anchors, segments, q.shape[2], window)
  out = _attend(q, k, v, context_k, context_v, first, end, scale)
  is_live = spans.live(anchors, segments)
  return jnp.where(is_live[:, :, None, None, None], out, 0)


def _check(tiles, *arrays):
  dtypes = {str(x.dtype) for x in arrays}
  if len(dtypes) > 1 or not dtypes <= set(DTYPES):
    raise NotImplementedError(
      f'tpu: arrays are {sorted(dtypes)}; cast all to one of'
      f' {", ".join(DTYPES)} or use xla'
    )
  if tiles.block_size > tpu_tiles.LANES:
    raise NotImplementedError(
      f'tpu: blocks of {tiles.block_size} slots; at most {tpu_tiles.LANES} fit'
      ' a tile, use xla'
    )
  if tiles.groups > 32:
    raise NotImplementedError(
      f'tpu: {tiles.groups} query heads share a key-value head; at most 32 fit'
      ' a tile, use xla'
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _attend(q, k, v, context_k, context_v, first, end, scale):
  return _forward(q, k, v, context_k, context_v, first, end, scale)[0]


def _forward(q, k, v, context_k, context_v, first, end, scale):
  t = tpu_tiles.make(q, k, context_k)
  out, lse = _call(
    tpu_kernel.forward,
    t,
    scale,
    walk=_over_blocks(t),
    grid=(t.num_tiles, t.num_blocks),
    num_products=2,
    scalars=tpu_tiles.visits(first, end, t)[:2],
    inputs=(
      ('queries', tpu_tiles.fold_queries(q, t)),
      ('own', tpu_tiles.fold_own(k, t)),
      ('own_t', tpu_tiles.fold_own(v, t).mT),
      ('context', tpu_tiles.fold_context(context_k, t)),
      ('context_t', tpu_tiles.fold_context(context_v, t).mT),
      ('bounds', tpu_tiles.bounds(first, end, t)),
    ),
    outputs=(('queries', v.dtype), ('stats', jnp.float32)),
    scratch=(
      (1, t.tile_queries),
      (1, t.tile_queries),
      (t.head_width, t.tile_queries),
    ),
  )
  saved = (q, k, v, context_k, context_v, first, end, out, lse)
  return tpu_tiles.unfold_queries(out, t), saved


def _backward(scale, saved, cotangent):
  q, k, v, context_k, context_v, first, end, out, lse = saved
  t = tpu_tiles.make(q, k, context_k)
  d_out = tpu_tiles.fold_queries(cotangent, t)
  delta = d_out.astype(jnp.float32) * out.astype(jnp.float32)
  stats = (
    ('bounds', tpu_tiles.bounds(first, end, t)),
    ('stats', lse),
    ('stats', jnp.sum(delta, axis=2, keepdims=True)),
  )
  queries = (('queries', tpu_tiles.fold_queries(q, t)), ('queries', d_out))
  own_k, own_v = tpu_tiles.fold_own(k, t), tpu_tiles.fold_own(v, t)
  keys = tpu_tiles.fold_context(context_k, t)
  values = tpu_tiles.fold_context(context_v, t)
  visits = tpu_tiles.visits(first, end, t)
  dq, dk, dv = _call(
    tpu_kernel.slot_gradient,
    t,
    scale,
    walk=_over_blocks(t),
    grid=(t.num_tiles, t.num_blocks),
    num_products=3,
    scalars=visits[:2],
    inputs=(
      *queries,
      ('own', own_k),
      ('own_t', own_k.mT),
      ('own', own_v),
      ('context', keys),
      ('context_t', keys.mT),
      ('context', values),
      *stats,
    ),
    outputs=(('queries', q.dtype), ('own_t', k.dtype), ('own_t', v.dtype)),
    scratch=((t.head_width, t.tile_queries),),
  )
  d_keys, d_values = _call(
    tpu_kernel.context_gradient,
    t,
    scale,
    walk=_over_tiles(t),
    grid=(t.num_blocks, t.num_tiles),
    num_products=4,
    scalars=(*visits[2:], *visits[:2]),
    inputs=(*queries, ('context', keys), ('context', values), *stats),
    outputs=(('context_t', context_k.dtype), ('context_t', context_v.dtype)),
    scratch=((t.head_width, t.block_len),) * 2,
  )
  return (
    tpu_tiles.unfold_queries(dq, t),
    tpu_tiles.unfold_own(dk, t),
    tpu_tiles.unfold_own(dv, t),
    tpu_tiles.unfold_context(d_keys, t),
    tpu_tiles.unfold_context(d_values, t),
    None,
    None,
  )


_attend.defvjp(_forward, _backward)


def _over_blocks(t):
  """For each tile, the blocks it sees; then the last one again."""

  def walk(row, tile, step, first, stop):
    at = row * t.num_tiles + tile
    return tile, _clamp(first[at], step, stop[at])

  return walk


def _over_tiles(t):
  """For each block, the tiles that see it; then the last one again."""

  def walk(row, block, step, first, stop, *_):
    at = row * t.num_blocks + block
    return _clamp(first[at], step, stop[at]), block

  return walk


def _clamp(first, step, stop):
  return jnp.minimum(first + step, jnp.maximum(stop - 1, first))


def _cost(t, num_products, inputs):
  """With half of the context visited, as for anchors all over a document."""
  columns = t.num_tiles * t.tile_queries
  scores = t.rows * t.num_kv_heads * columns * t.num_blocks * t.block_len // 2
  streamed = read = 0
  for name, x in inputs:
    size = x.size * x.dtype.itemsize
    if name.startswith('context'):
      streamed += t.num_tiles * size
    else:
      read += size
  return pl.CostEstimate(
    flops=num_products * 2 * scores * t.head_width,
    transcendentals=scores,
    bytes_accessed=read + streamed // 2,
  )


def _call(
  kernel,
  t,
  scale,
  *,
  walk,
  grid,
  num_products,
  scalars,
  inputs,
  outputs,
  scratch,
):
  """Runs a kernel over (row, head, *grid).

  `walk` names the tile and the block of a grid step; `num_products` are the
  matrix products of a step.
  """
  columns = t.num_tiles * t.tile_queries
  slots = t.num_tiles * t.tile_slots
  length = t.num_blocks * t.block_len
  width = t.head_width
  # Of one row and head: the block in VMEM, its place, and the whole array.
  layouts = {
    'queries': ((width, t.tile_queries), (None, 'tile'), (width, columns)),
    'stats': ((1, t.tile_queries), (None, 'tile'), (1, columns)),
    'own': ((t.tile_slots, width), ('tile', None), (slots, width)),
    'own_t': ((width, t.tile_slots), (None, 'tile'), (width, slots)),
    'context': ((t.block_len, width), ('block', None), (length, width)),
    'context_t': ((width, t.block_len), (None, 'block'), (width, length)),
  }

  def spec(name):
    if name == 'bounds':  # The same for all heads.
      return pl.BlockSpec(
        (1, 2, t.tile_queries),
        lambda b, h, i, j, *s: (b, 0, walk(b, i, j, *s)[0]),
      )
    size, axes, _ = layouts[name]

    def index(b, h, i, j, *s):
      place = dict(zip(('tile', 'block'), walk(b, i, j, *s), strict=True))
      return b, h, *(place.get(axis, 0) for axis in axes)

    return pl.BlockSpec((1, 1, *size), index)

  heads = (t.rows, t.num_kv_heads)
  return pl.pallas_call(
    functools.partial(kernel, tiles=t, scale=scale),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(*heads, *grid),
      in_specs=[spec(name) for name, _ in inputs],
      out_specs=[spec(name) for name, _ in outputs],
      scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    ),
    out_shape=[
      jax.ShapeDtypeStruct((*heads, *layouts[name][2]), dtype)
      for name, dtype in outputs
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('parallel', 'parallel', 'parallel', 'arbitrary'),
      vmem_limit_bytes=VMEM_BYTES,
    ),
    cost_estimate=_cost(t, num_products, inputs),
    name=f'draft_block_attention_{kernel.__name__}',
  )(*(x.reshape(-1) for x in scalars), *(x for _, x in inputs))
