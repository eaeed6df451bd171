# SPDX-License-Identifier: MIT
"""Pallas TPU (Mosaic): read, change and write back the tiles that are touched.

Memory is written in tiles: 8 rows of a page (128 where rows lie on the lanes,
see `tpu_pages`). A grid step takes one row of the batch and some of the layers:
it copies the tiles between position `length` and `length + num_rows` from the
pools, puts the new rows in, and copies them back. The pools are outputs aliased
to inputs, so everything else stays where it is, untouched. Tiles that are
written whole are not read. While a step works, the next one's tiles arrive and
the last one's leave; no two steps share a tile.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jspec.kernels import tpu_pages

VMEM_BYTES = 32 * 2**20
VMEM_SLACK = 8 * 2**20  # What Mosaic keeps for itself.
# More layers in a step make longer code, not shorter time.
STEP_BYTES = 6 * 2**20
DTYPES = ('float32', 'bfloat16')
# Mosaic lowers `//` of signed numbers by asking which TPU it runs on.
div, rem = jax.lax.div, jax.lax.rem


def kv_commit(
  k_pages,
  v_pages,
  k,
  v,
  path,
  page_ids,
  lengths,
  num_rows,
  *,
  vmem_bytes: int = VMEM_BYTES,
):
  """Same contract as `api.kv_commit`.

  Refuses, by NotImplementedError, dtypes and page sizes that have no tiling and
  rows that do not fit in `vmem_bytes`.
  """
  num_layers, num_pages, num_kv_heads, page_size, width = k_pages.shape
  rows, path_len = path.shape
  _check(k_pages, v_pages)
  is_transposed = tpu_pages.rows_on_lanes(page_size, width)
  tile = tpu_pages.LANES if is_transposed else tpu_pages.SUBLANES
  # Rows may start anywhere in the first tile.
  num_tiles = -(-(tile - 1 + path_len) // tile)
  num_layers_together = _layers(
    k_pages.shape,
    k_pages.dtype.itemsize,
    path_len,
    num_tiles * tile,
    vmem_bytes,
  )

  def along(nodes):
    nodes = jnp.take_along_axis(nodes, path[None, :, :, None, None], axis=2)
    return nodes.swapaxes(2, 3).astype(k_pages.dtype)  # [L, B, K, G, H]

  shape = (num_tiles * tile, width)
  if is_transposed:
    k_pages, v_pages = k_pages.swapaxes(3, 4), v_pages.swapaxes(3, 4)
    shape = shape[::-1]
  buffer = pltpu.VMEM(
    (2, num_layers_together, num_kv_heads, *shape), k_pages.dtype
  )
  row_spec = pl.BlockSpec(
    (num_layers_together, None, num_kv_heads, path_len, width),
    lambda b, l, *_: (l, b, 0, 0, 0),
  )
  pool_spec = pl.BlockSpec(memory_space=pl.ANY)
  pool = jax.ShapeDtypeStruct(k_pages.shape, k_pages.dtype)
  scalars = (
    jnp.minimum(page_ids, num_pages - 1).reshape(-1).astype(jnp.int32),
    lengths.astype(jnp.int32),
    num_rows.astype(jnp.int32),
  )
  touched = 2 * rows * num_layers * num_kv_heads * num_tiles * tile * width
  k_pages, v_pages = pl.pallas_call(
    functools.partial(
      _kernel,
      num_pages=page_ids.shape[1],
      page_size=page_size,
      tile=tile,
      num_tiles=num_tiles,
      is_transposed=is_transposed,
    ),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=len(scalars),
      grid=(rows, num_layers // num_layers_together),
      in_specs=[row_spec, row_spec, pool_spec, pool_spec],
      out_specs=[pool_spec, pool_spec],
      scratch_shapes=[
        buffer,
        buffer,
        pltpu.SemaphoreType.DMA((2,)),
        pltpu.SemaphoreType.DMA((2,)),
      ],
    ),
    out_shape=[pool, pool],
    input_output_aliases={len(scalars) + 2: 0, len(scalars) + 3: 1},
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=('arbitrary', 'arbitrary'),
      vmem_limit_bytes=vmem_bytes + VMEM_SLACK,
    ),
    cost_estimate=pl.CostEstimate(
      flops=0,
      transcendentals=0,
      bytes_accessed=2 * touched * k_pages.dtype.itemsize,
    ),
    name='kv_commit',
  )(*scalars, along(k), along(v), k_pages, v_pages)
  if is_transposed:
    k_pages, v_pages = k_pages.swapaxes(3, 4), v_pages.swapaxes(3, 4)
  return k_pages, v_pages, _is_dropped(page_ids, lengths, num_rows, page_size)


def _kernel(
  ids,
  lengths,
  num_rows,
  k,
  v,
  k_in,
  v_in,
  k_pages,
  v_pages,
  k_buffer,
  v_buffer,
  arrivals,
  departures,
  *,
  num_pages,
  page_size,
  tile,
  num_tiles,
  is_transposed,
):
  del k_in, v_in  # The same memory as k_pages and v_pages.
  num_layer_steps = pl.num_programs(1)
  step = pl.program_id(0) * num_layer_steps + pl.program_id(1)
  num_steps = pl.num_programs(0) * num_layer_steps
  slot = step & 1
  num_layers = k_buffer.shape[1]

  # --- The tiles of a step and their copies ----------------------------------

  def for_tiles(step, act):
    """Calls act(where in a pool, where in a buffer, whether it is partial)."""
    row = div(step, num_layer_steps)
    layers = pl.ds(rem(step, num_layer_steps) * num_layers, num_layers)
    length, count = lengths[row], num_rows[row]
    first = div(length, tile)
    end = div(length + count + tile - 1, tile)

    @pl.loop(0, jnp.where(count > 0, end - first, 0))
    def _(i):
      position = (first + i) * tile
      index = div(position, page_size)
      page = ids[row * num_pages + jnp.minimum(index, num_pages - 1)]

      @pl.when((index < num_pages) & (page >= 0))
      def _():
        start = pl.multiple_of(rem(position, page_size), tile)
        inside = (pl.ds(start, tile),)
        here = (pl.ds(pl.multiple_of(i * tile, tile), tile),)
        if is_transposed:
          inside, here = (slice(None), *inside), (slice(None), *here)
        is_partial = (position < length) | (position + tile > length + count)
        act((layers, page, slice(None), *inside), here, is_partial)

  def copies(step, where, here):
    for pool, buffer in ((k_pages, k_buffer), (v_pages, v_buffer)):
      yield pool.at[where], buffer.at[step & 1, :, :, *here]

  def read(step, act):
    def one(where, here, is_partial):
      @pl.when(is_partial)
      def _():
        for source, target in copies(step, where, here):
          act(pltpu.make_async_copy(source, target, arrivals.at[step & 1]))

    for_tiles(step, one)

  def write(step, act):
    def one(where, here, _):
      for target, source in copies(step, where, here):
        act(pltpu.make_async_copy(source, target, departures.at[step & 1]))

    for_tiles(step, one)

  # --- One step --------------------------------------------------------------

  @pl.when(step == 0)
  def _():
    read(0, lambda copy: copy.start())

  @pl.when(step > 0)
  def _():  # Before its buffer is filled again.
    write(step - 1, lambda copy: copy.wait())

  @pl.when(step + 1 < num_steps)
  def _():
    read(step + 1, lambda copy: copy.start())

  read(step, lambda copy: copy.wait())
  row = pl.program_id(0)
  offset = rem(lengths[row], tile)

  @pl.when(num_rows[row] > 0)
  def _():
    axis = 3 if is_transposed else 2
    shape = [1, 1, 1, 1]
    shape[axis] = num_tiles * tile
    position = jax.lax.broadcasted_iota(jnp.int32, tuple(shape), axis)
    is_new = (position >= offset) & (position < offset + num_rows[row])
    for nodes, buffer in ((k, k_buffer), (v, v_buffer)):
      # Only 32-bit values can be rotated by a number known at run time.
      new = nodes[...].astype(jnp.float32)
      if is_transposed:
        new = new.swapaxes(2, 3)
      padding = [(0, 0)] * 4
      padding[axis] = (0, num_tiles * tile - new.shape[axis])
      new = pltpu.roll(jnp.pad(new, padding), offset, axis)
      old = buffer[slot].astype(jnp.float32)
      buffer[slot] = jnp.where(is_new, new, old).astype(buffer.dtype)

  write(step, lambda copy: copy.start())

  @pl.when(step + 1 == num_steps)
  def _():
    write(step, lambda copy: copy.wait())


def _is_dropped(page_ids, lengths, num_rows, page_size):
  """Whether a row has no page for one of its positions."""
  slots = jnp.arange(page_ids.shape[1] + 1)
  pages = jnp.pad(page_ids, ((0, 0), (0, 1)), constant_values=-1)
  starts = slots * page_size
  is_written = (starts + page_size > lengths[:, None]) & (
    starts < (lengths + num_rows)[:, None]
  )
  # The last slot stands for everything behind the table.
  is_written = is_written.at[:, -1].set(
    lengths + num_rows > page_ids.shape[1] * page_size
  )
  is_written &= num_rows[:, None] > 0
  return jnp.any(is_written & (pages < 0))


def _layers(shape, itemsize, path_len, num_buffered, vmem_bytes):
  """How many layers a step takes: they fit, and divide all of them."""
  num_layers, _, num_kv_heads, page_size, width = shape
  lanes = -(-width // tpu_pages.LANES) * tpu_pages.LANES
  padded = -(-path_len // 16) * 16
  # Two buffers and two blocks of rows for each pool; float32 on the way.
  each = 4 * (num_buffered + padded) * itemsize + 3 * num_buffered * 4
  each *= num_kv_heads * lanes
  if each > vmem_bytes:
    raise NotImplementedError(
      f'kv_commit on TPU: {path_len} rows of {num_kv_heads} heads of {width}'
      f' need {each} bytes of VMEM, the limit is {vmem_bytes}: commit fewer'
      ' rows at once or shard the key-value heads'
    )
  most = max(min(STEP_BYTES, vmem_bytes) // each, 1)
  return max(n for n in range(1, most + 1) if num_layers % n == 0)


def _check(k_pages, v_pages):
  dtypes = sorted({str(x.dtype) for x in (k_pages, v_pages)})
  if len(dtypes) > 1 or dtypes[0] not in DTYPES:
    raise NotImplementedError(
      f'kv_commit on TPU: pools of {dtypes}; use one of {DTYPES} for both'
    )
  page_size = k_pages.shape[3]
  if page_size % tpu_pages.SUBLANES:
    raise NotImplementedError(
      f'kv_commit on TPU: pages of {page_size} rows are not written in tiles'
      f' of {tpu_pages.SUBLANES}: use a multiple of it'
    )
