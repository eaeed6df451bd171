# SPDX-License-Identifier: MIT
"""The body of the TPU kernel; `tpu.py` says how it works and calls it.

References are loaded and their values reshaped, never the references, so that
the TPU interpreter, which finds races and reads out of bounds, can run it.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jspec.kernels.block_tree_attention import tpu_blocks

LANES = tpu_blocks.LANES
# Mosaic lowers `//` of signed numbers by asking which TPU it runs on.
div, rem = jax.lax.div, jax.lax.rem
# Finite, so that a row of masked scores gives no NaN; exp(MASKED - m) is 0.
MASKED = -0.7 * float(jnp.finfo(jnp.float32).max)


def kernel(*refs, problem, blocks, window, has_sinks, scale):
  """One grid step: the live nodes of a row (or of 128 of its nodes).

  Args:
    *refs: scalars in SMEM (layer, page ids, lengths, live nodes, sinks), blocks
      in VMEM (q, k, v, words, depths), both pools in HBM, the output, scratch.
    problem: the shapes.
    blocks: the block sizes.
    window: tokens a node sees, or None.
    has_sinks: whether sinks are among `refs`.
    scale: factor on the scores.
  """
  layer, ids, lengths, live, *refs = refs
  sinks, refs = (refs[0], refs[1:]) if has_sinks else (None, refs)
  q, k, v, words, *refs = refs
  depths, key_depths = None, None
  if window is not None:
    depths, key_depths, *refs = refs
  k_pages, v_pages, out, k_buffer, v_buffer, *refs = refs
  m, z, o, distance, next_slot, semaphores = refs

  step = pl.program_id(0)
  page_size, num_kv_heads = problem.page_size, problem.num_kv_heads
  groups, is_transposed = problem.groups, problem.is_transposed
  block_rows = blocks.pages * page_size
  # Mosaic takes no other precision for bfloat16, whatever the program asks for.
  is_wide = q.dtype == jnp.float32
  precision = (
    jax.lax.Precision.HIGHEST if is_wide else jax.lax.Precision.DEFAULT
  )

  # --- Which pages a grid step needs, and their copies -----------------------

  def pages_of(step):
    """First page and number of pages; a step without live nodes has none."""
    length = lengths[div(step, problem.num_tiles)]
    end = _ceil_div(length, page_size)
    first = 0
    if window is not None:  # The anchor sees furthest back.
      first = div(jnp.maximum(length + 1 - window, 0), page_size)
    return first, jnp.where(live[step] > 0, jnp.maximum(end - first, 0), 0)

  def for_pages(step, block, slot, act):
    first, num_pages = pages_of(step)
    first += block * blocks.pages
    start = div(step, problem.num_tiles) * problem.pages_per_row + first
    count = jnp.clip(num_pages - block * blocks.pages, 0, blocks.pages)

    @pl.loop(0, count)
    def _(i):
      where = (pl.ds(pl.multiple_of(i * page_size, page_size), page_size),)
      if is_transposed:
        where = (slice(None), *where)
      for pages, buffer in ((k_pages, k_buffer), (v_pages, v_buffer)):
        act(
          pltpu.make_async_copy(
            pages.at[layer[0], ids[start + i]],
            buffer.at[slot, :, *where],
            semaphores.at[slot],
          )
        )

  def start(step, block, slot):
    for_pages(step, block, slot, lambda copy: copy.start())

  def wait(step, block, slot):
    for_pages(step, block, slot, lambda copy: copy.wait())

  @pl.when(step == 0)
  def _():
    next_slot[0] = 0
    start(0, 0, 0)

  # --- The round's own nodes -------------------------------------------------

  length = lengths[div(step, problem.num_tiles)]
  num_live = live[step] * groups
  num_query_tiles = _ceil_div(num_live, blocks.queries)

  def query_rows(tile):
    return pl.ds(
      pl.multiple_of(tile * blocks.queries, blocks.queries), blocks.queries
    )

  def node_of_row(tile, shape):
    """Node and head of the group of each query row, along sublanes."""
    row = jax.lax.broadcasted_iota(jnp.int32, shape, 0) + tile * blocks.queries
    # Vectors have no integer division; this one is exact for small numbers.
    node = jnp.floor((row.astype(jnp.float32) + 0.5) / groups).astype(jnp.int32)
    return node, row - node * groups

  def scores(q, k, *, is_transposed=False):
    return scale * _matmul(q, k, 0 if is_transposed else 1, precision)

  def weighted(p, v, *, is_transposed=False):
    p = p.astype(v.dtype)
    return _matmul(p, v, 1 if is_transposed else 0, precision)

  @pl.loop(0, num_query_tiles)
  def _(tile):
    rows = query_rows(tile)
    shape = (blocks.queries, problem.tile_nodes)
    node, _ = node_of_row(tile, shape)
    own = (jax.lax.broadcasted_iota(jnp.int32, shape, 1) == node).astype(
      jnp.float32
    )
    visible = _expand(_bits(words, problem), own) > 0.5
    if window is not None:
      depth = jnp.broadcast_to(
        depths[0].astype(jnp.float32), (LANES, problem.tile_nodes)
      )
      distance[rows] = _expand(depth, own)
      back = distance[rows, :1] - key_depths[0].astype(jnp.float32)
      visible &= back < window
    if has_sinks:
      _, head = node_of_row(tile, (blocks.queries, 1))
    for h in range(num_kv_heads):
      s = jnp.where(visible, scores(q[0, h, rows], k[0, h]), MASKED)
      top = jnp.max(s, axis=1, keepdims=True)
      if has_sinks:
        sink = jnp.zeros((blocks.queries, 1), jnp.float32)
        for g in range(groups):
          sink = jnp.where(head == g, sinks[h * groups + g], sink)
        top = jnp.maximum(top, sink)
      p = jnp.exp(s - top)
      total = jnp.sum(p, axis=1, keepdims=True)
      if has_sinks:
        total += jnp.exp(sink - top)
      m[h, rows] = jnp.broadcast_to(top, (blocks.queries, LANES))
      z[h, rows] = jnp.broadcast_to(total, (blocks.queries, LANES))
      o[h, rows] = weighted(p, v[0, h])

  # --- The committed prefix --------------------------------------------------

  first_page, num_pages = pages_of(step)
  # At least one, if only to start the copies of the next row.
  num_blocks = jnp.maximum(_ceil_div(num_pages, blocks.pages), 1)
  first_slot = next_slot[0]

  @pl.loop(0, num_blocks)
  def _(block):
    slot = (first_slot + block) & 1
    is_last = block + 1 == num_blocks

    @pl.when(jnp.logical_not(is_last))
    def _():
      start(step, block + 1, 1 - slot)

    @pl.when(is_last & (step + 1 < pl.num_programs(0)))
    def _():
      start(step + 1, 0, 1 - slot)

    wait(step, block, slot)
    begin = (first_page + block * blocks.pages) * page_size

    @pl.when(num_pages > 0)
    def _():
      @pl.when(begin + block_rows > length)
      def _():
        # Rows past the length may hold anything, and 0 * NaN is NaN.
        shape = (1, block_rows) if is_transposed else (block_rows, 1)
        row = jax.lax.broadcasted_iota(jnp.int32, shape, int(is_transposed))
        for h in range(num_kv_heads):
          v_buffer[slot, h] = blank(v_buffer[slot, h], begin + row < length)

      position = begin + jax.lax.broadcasted_iota(jnp.int32, (1, block_rows), 1)
      is_live = position < length

      @pl.loop(0, num_query_tiles)
      def _(tile):
        rows = query_rows(tile)
        visible = is_live
        if window is not None:
          back = distance[rows, :1] - (position - length).astype(jnp.float32)
          visible = is_live & (back < window)
        for h in range(num_kv_heads):
          s = scores(
            q[0, h, rows],
            k_buffer[slot, h].astype(q.dtype),
            is_transposed=is_transposed,
          )
          s = jnp.where(visible, s, MASKED)
          before = m[h, rows, :1]
          top = jnp.maximum(before, jnp.max(s, axis=1, keepdims=True))
          decay, p = jnp.exp(before - top), jnp.exp(s - top)
          total = z[h, rows, :1] * decay + jnp.sum(p, axis=1, keepdims=True)
          m[h, rows] = jnp.broadcast_to(top, (blocks.queries, LANES))
          z[h, rows] = jnp.broadcast_to(total, (blocks.queries, LANES))
          o[h, rows] = o[h, rows] * decay + weighted(
            p, v_buffer[slot, h].astype(v.dtype), is_transposed=is_transposed
          )

  next_slot[0] = (first_slot + num_blocks) & 1

  # --- The output; dead nodes are exactly 0 ----------------------------------

  num_tiles = out.shape[2] // blocks.queries

  @pl.loop(0, num_tiles)
  def _(tile):
    rows = query_rows(tile)
    row = jax.lax.broadcasted_iota(jnp.int32, (blocks.queries, 1), 0)
    is_live = row + tile * blocks.queries < num_live
    for h in range(num_kv_heads):
      y = o[h, rows] / z[h, rows, :1]
      out[0, h, rows] = jnp.where(is_live, y, 0).astype(out.dtype)


def blank(values, is_live):
  """Values with 0 in rows that are not live."""
  return jnp.where(is_live, values, 0)


def _ceil_div(x, y):
  return div(x + y - 1, y)


def _bits(words, problem):
  """[s, t]: whether query node t sees node s, as 0 or 1 in float32."""
  pieces = []
  for word in range(problem.num_words):
    num_bits = min(32, problem.padded_nodes - 32 * word)
    shape = (num_bits, problem.tile_nodes)
    bit = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    pieces.append((words[0, word : word + 1] >> bit) & 1)
  return jnp.concatenate(pieces, axis=0).astype(jnp.float32)


def _expand(table, own):
  """[query row, s] from table [s, t] and own [query row, t]; exact."""
  return _matmul(own, table, 1, jax.lax.Precision.HIGHEST)


def _matmul(x, y, y_axis, precision):
  """Contracts the last axis of x with `y_axis` of y, in float32."""
  return jax.lax.dot_general(
    x,
    y,
    (((1,), (y_axis,)), ((), ())),
    precision=precision,
    preferred_element_type=jnp.float32,
  )
