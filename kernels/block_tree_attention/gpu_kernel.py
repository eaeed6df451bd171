# SPDX-License-Identifier: MIT
"""The Mosaic GPU kernel: one share of a context for 64 query rows.

A program owns 64 query rows of one key-value head of one batch row, and one
share of that row's context. It copies 64 keys and values at a time from their
pages with TMA, several copies in flight, multiplies with WGMMA, and keeps for
its rows, in float32 registers,

  m = max_s x_s,   z = sum_s 2^(x_s - m),   o = sum_s 2^(x_s - m) v_s

with x = q.k * scale. The round's own nodes are the last blocks of share 0, as
if they were pages, under their ancestor words.

WGMMA results are added to the running sums in registers, a swizzle's width of
the head at a time, rather than accumulated in place: that is what the Mosaic
GPU interpreter can run. For the same reason GMEM is never sliced, only indexed.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

TILE = 64  # Query rows of a program and keys of a block: the height of WGMMA.
WORD_BITS = 32
# Finite, so that a row that sees nothing yields no NaN. The maximum starts
# above what is masked, so that such scores weigh 2^-9e29 = 0 even there.
MASKED, LOWEST = -1e30, -1e29
# Half of a multiprocessor's shared memory, less what is not queries or pages.
SHARED_BYTES = 109 * 1024
MAX_STAGES = 4


def swizzle_of(width):
  """Widest swizzle in bytes that divides a head, and None where none does."""
  widest = (64, 32) if width > 128 else (128, 64, 32)
  return next((s for s in widest if width % (s // 2) == 0), None)


def run(
  q,
  k,
  v,
  k_pages,
  v_pages,
  page_ids,
  lengths,
  starts,
  num_nodes,
  by_row,
  *,
  page_size,
  num_shares,
  has_window,
  scale,
):
  """Attends in shares.

  Args:
    q: query rows [B K tiles 64 H], bfloat16 or float16.
    k: keys of the nodes in pieces [pieces piece H], rows and heads in order, a
      multiple of 64 nodes for each.
    v: values, likewise.
    k_pages: key pool of all layers in pieces [pieces piece H]; a piece is a
      page, or 64 rows of a larger one.
    v_pages: value pool, likewise.
    page_ids: [B M], where head 0 of a page lies on the pool's flat (layer,
      page, head) axis; any number in range where a row owns no page.
    lengths: [B] cached tokens.
    starts: [B] first cached position that any node sees.
    num_nodes: [B] live nodes.
    by_row: [B tiles words+1 64] int32: the ancestor words of each query row,
      two for each block of nodes, then the first position it sees.
    page_size: rows in a page.
    num_shares: into how many shares a context is split.
    has_window: whether first positions matter.
    scale: factor on the scores, log2(e) included.

  Returns:
    o [B K tiles shares 64 H], m and z [B K tiles shares 64], float32. A share
    without visible tokens has m = -1e29 and z = 0.
  """
  width = q.shape[-1]
  swizzle = swizzle_of(width)
  chunk = swizzle // q.dtype.itemsize
  transforms = (
    plgpu.TilingTransform((8, chunk)),
    plgpu.SwizzleTransform(swizzle),
  )
  tile_bytes = TILE * width * q.dtype.itemsize
  stages = (SHARED_BYTES - tile_bytes) // (2 * tile_bytes)
  stages = min(max(stages, 2), MAX_STAGES)
  out = (*q.shape[:3], num_shares, TILE)
  state = jax.ShapeDtypeStruct(out, jnp.float32)
  buffer = plgpu.SMEM((stages, TILE, width), q.dtype, transforms=transforms)
  return plgpu.kernel(
    functools.partial(
      _program,
      page_size=page_size,
      has_window=has_window,
      scale=scale,
      chunk=chunk,
    ),
    out_type=[jax.ShapeDtypeStruct((*out, width), jnp.float32), state, state],
    scratch_types=dict(
      q_smem=plgpu.SMEM((TILE, width), q.dtype, transforms=transforms),
      k_smem=buffer,
      v_smem=buffer,
      by_row_smem=plgpu.SMEM(by_row.shape[2:], jnp.int32),
      row_barrier=plgpu.Barrier(num_arrivals=2),
      barriers=plgpu.Barrier(
        num_arrivals=2 * (TILE // k_pages.shape[1]), num_barriers=stages
      ),
    ),
    grid=out[:-1],
    grid_names=('row', 'kv_head', 'tile', 'share'),
    kernel_name='block_tree_attention',
    compiler_params=plgpu.CompilerParams(approx_math=True),
  )(q, k, v, k_pages, v_pages, page_ids, lengths, starts, num_nodes, by_row)


def _program(
  q_ref,
  k_ref,
  v_ref,
  k_pages_ref,
  v_pages_ref,
  page_ids_ref,
  lengths_ref,
  starts_ref,
  num_nodes_ref,
  by_row_ref,
  o_ref,
  m_ref,
  z_ref,
  q_smem,
  k_smem,
  v_smem,
  by_row_smem,
  row_barrier,
  barriers,
  *,
  page_size,
  has_window,
  scale,
  chunk,
):
  row, kv_head, tile, share = map(
    lax.axis_index, ('row', 'kv_head', 'tile', 'share')
  )
  stages, _, width = k_smem.shape
  piece = k_pages_ref.shape[1]
  num_words = by_row_ref.shape[2] - 1
  chunks = [pl.ds(i, chunk) for i in range(0, width, chunk)]
  by_row_layout = plgpu.Layout.WGMMA.reduce(1)

  # Steps: this share of the blocks that anyone sees, then the nodes.
  length, start = lengths_ref[row], starts_ref[row]
  first_block = lax.div(start, TILE)
  num_blocks = jnp.maximum(_blocks(length) - first_block, 0)
  each = lax.div(num_blocks + o_ref.shape[3] - 1, o_ref.shape[3])
  low = jnp.minimum(each * share, num_blocks)
  num_cached = jnp.minimum(each * (share + 1), num_blocks) - low
  num_steps = num_cached + jnp.where(share == 0, _blocks(num_nodes_ref[row]), 0)

  def position_of(step):
    return (first_block + low + step) * TILE

  def copy(k_source, v_source, index, slot, i):
    at = slice(i * piece, (i + 1) * piece)
    barrier = barriers.at[slot]
    plgpu.copy_gmem_to_smem(k_source.at[index], k_smem.at[slot, at], barrier)
    plgpu.copy_gmem_to_smem(v_source.at[index], v_smem.at[slot, at], barrier)

  def fetch(step):
    """Starts a step's copies into the slot whose step is done."""
    slot = lax.rem(step, stages)

    @pl.when(step < num_cached)
    def _():
      for i in range(TILE // piece):
        # Behind the end the last live piece comes again, and is masked.
        position = jnp.minimum(position_of(step) + i * piece, length - 1)
        page = page_ids_ref[row, lax.div(position, page_size)] + kv_head
        part = lax.div(lax.rem(position, page_size), piece)
        index = page * (page_size // piece) + part
        copy(k_pages_ref, v_pages_ref, index, slot, i)

    @pl.when((step >= num_cached) & (step < num_steps))
    def _():
      own = (row * q_ref.shape[1] + kv_head) * (num_words * WORD_BITS // TILE)
      for i in range(TILE // piece):
        index = (own + step - num_cached) * (TILE // piece) + i
        copy(k_ref, v_ref, index, slot, i)

  def arrive(step):
    fetch(step + stages - 1)
    plgpu.barrier_wait(barriers.at[lax.rem(step, stages)])

  def attend(step, mask, carry):
    """Online softmax over one block: the log-sum-exp merge, in place."""
    m, z, sums = carry
    slot = lax.rem(step, stages)

    def score(result):
      plgpu.wgmma(result, q_smem, plgpu.transpose_ref(k_smem.at[slot], (1, 0)))
      return result[...]

    scores = pl.run_scoped(score, plgpu.ACC((TILE, TILE), jnp.float32))
    scores = jnp.where(mask, scores * scale, MASKED)
    m_next = jnp.maximum(m, jnp.max(scores, axis=1))
    decay = jnp.exp2(m - m_next)
    weights = jnp.exp2(scores - _columns(m_next, TILE))
    z = z * decay + jnp.sum(weights, axis=1)
    weights = weights.astype(v_smem.dtype)

    def weigh(part, result):
      plgpu.wgmma(result, weights, v_smem.at[slot, :, part])
      return result[...]

    block = plgpu.ACC((TILE, chunk), jnp.float32)
    sums = tuple(
      o * _columns(decay, chunk)
      + pl.run_scoped(functools.partial(weigh, part), block)
      for o, part in zip(sums, chunks, strict=True)
    )
    return m_next, z, sums

  def attend_cached(step, carry):
    arrive(step)
    begin = position_of(step)

    # What is not live may hold NaN, and 0 * NaN is NaN: blank such values.
    @pl.when((begin < start) | (begin + TILE > length))
    def _():
      position = begin + _iota((TILE, chunk), 0)
      is_live = (position >= start) & (position < length)
      for part in chunks:
        at = lax.rem(step, stages), slice(None), part
        values = v_smem[at]
        v_smem[at] = jnp.where(is_live, values, jnp.zeros_like(values))
      plgpu.commit_smem()

    position = begin + _iota((TILE, TILE), 1)
    mask = position < length
    if has_window:
      first = plgpu.layout_cast(by_row_smem[num_words], by_row_layout)
      mask &= position >= _columns(first, TILE)
    return attend(step, mask, carry)

  def attend_own(step, carry):
    arrive(step)
    word = (step - num_cached) * (TILE // WORD_BITS)
    left = plgpu.layout_cast(by_row_smem[word], by_row_layout)
    right = plgpu.layout_cast(by_row_smem[word + 1], by_row_layout)
    node = _iota((TILE, TILE), 1)
    words = jnp.where(
      node < WORD_BITS, _columns(left, TILE), _columns(right, TILE)
    )
    bits = lax.shift_right_logical(words, node & (WORD_BITS - 1)) & 1
    return attend(step, bits != 0, carry)

  plgpu.copy_gmem_to_smem(q_ref.at[row, kv_head, tile], q_smem, row_barrier)
  plgpu.copy_gmem_to_smem(by_row_ref.at[row, tile], by_row_smem, row_barrier)
  for step in range(stages - 1):
    fetch(jnp.int32(step))
  plgpu.barrier_wait(row_barrier)

  carry = (
    _full((TILE,), LOWEST, by_row_layout),
    _full((TILE,), 0.0, by_row_layout),
    tuple(_full((TILE, chunk), 0.0, plgpu.Layout.WGMMA) for _ in chunks),
  )
  carry = lax.fori_loop(0, num_cached, attend_cached, carry)
  m, z, sums = lax.fori_loop(num_cached, num_steps, attend_own, carry)
  at = row, kv_head, tile, share
  m_ref[at] = m
  z_ref[at] = z
  for o, part in zip(sums, chunks, strict=True):
    o_ref[(*at, slice(None), part)] = o


def _blocks(count):
  return lax.div(count + TILE - 1, TILE)


def _columns(x, count):
  """A number of each row, in every one of `count` columns."""
  return lax.broadcast_in_dim(x, (x.shape[0], count), [0])


def _iota(shape, axis):
  return plgpu.broadcasted_iota(
    jnp.int32, shape, axis, layout=plgpu.Layout.WGMMA
  )


def _full(shape, value, layout):
  return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)
