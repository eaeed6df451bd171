# SPDX-License-Identifier: MIT
"""The three TPU kernels: forward, gradient of slots, gradient of context.

Scores of a block are [keys, columns]: keys on sublanes, queries on lanes.

  forward         for each tile: own block, then the context blocks it sees
  slot gradient   the same walk, recomputing p from the log-sum-exp
  context grad.   for each context block: the tiles that see it

A grid step that has nothing to visit names the block of the step before, so
nothing is copied, and computes nothing.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def forward(
  first,
  stop,
  q,
  own_k,
  own_v_t,
  context_k,
  context_v_t,
  bounds,
  out,
  lse,
  m,
  z,
  o,
  *,
  tiles,
  scale,
):
  """One (row, head, tile, block): o [H, columns] and its log-sum-exp."""
  tile, block = _walk(first, stop, tiles.num_tiles)

  @pl.when(pl.program_id(3) == 0)
  def _():
    scores = _matmul(own_k[0, 0], q[0, 0]) * scale
    scores = jnp.where(_is_own(tiles), scores, -jnp.inf)
    m[...] = jnp.max(scores, axis=0, keepdims=True)
    p = jnp.exp(scores - m[...])
    z[...] = jnp.sum(p, axis=0, keepdims=True)
    o[...] = _matmul(own_v_t[0, 0], p)

  @pl.when(block < stop[tile])
  def _():
    scores = _matmul(context_k[0, 0], q[0, 0]) * scale
    scores = jnp.where(_is_seen(bounds, block, tiles), scores, -jnp.inf)
    m_next = jnp.maximum(m[...], jnp.max(scores, axis=0, keepdims=True))
    decay = jnp.exp(m[...] - m_next)
    p = jnp.exp(scores - m_next)
    z[...] = z[...] * decay + jnp.sum(p, axis=0, keepdims=True)
    o[...] = o[...] * decay + _matmul(context_v_t[0, 0], p)
    m[...] = m_next

  @pl.when(pl.program_id(3) == tiles.num_blocks - 1)
  def _():
    out[0, 0] = (o[...] / z[...]).astype(out.dtype)
    lse[0, 0] = m[...] + jnp.log(z[...])


def slot_gradient(
  first,
  stop,
  q,
  d_out,
  own_k,
  own_k_t,
  own_v,
  context_k,
  context_k_t,
  context_v,
  bounds,
  lse,
  delta,
  dq,
  dk_t,
  dv_t,
  dq_sum,
  *,
  tiles,
  scale,
):
  """One (row, head, tile, block): dq, and dk and dv of the own block."""
  tile, block = _walk(first, stop, tiles.num_tiles)

  def weights(k, v, mask):
    p = jnp.exp(_matmul(k, q[0, 0]) * scale - lse[0, 0])
    p = jnp.where(mask, p, 0)
    return p, p * (_matmul(v, d_out[0, 0]) - delta[0, 0]) * scale

  @pl.when(pl.program_id(3) == 0)
  def _():
    p, ds = weights(own_k[0, 0], own_v[0, 0], _is_own(tiles))
    dq_sum[...] = _matmul(own_k_t[0, 0], ds)
    dk_t[0, 0] = _matmul_nt(q[0, 0], ds).astype(dk_t.dtype)
    dv_t[0, 0] = _matmul_nt(d_out[0, 0], p).astype(dv_t.dtype)

  @pl.when(block < stop[tile])
  def _():
    mask = _is_seen(bounds, block, tiles)
    _, ds = weights(context_k[0, 0], context_v[0, 0], mask)
    dq_sum[...] += _matmul(context_k_t[0, 0], ds)

  @pl.when(pl.program_id(3) == tiles.num_blocks - 1)
  def _():
    dq[0, 0] = dq_sum[...].astype(dq.dtype)


def context_gradient(
  first_tile,
  stop_tile,
  first,
  stop,
  q,
  d_out,
  context_k,
  context_v,
  bounds,
  lse,
  delta,
  dk_t,
  dv_t,
  dk_sum,
  dv_sum,
  *,
  tiles,
  scale,
):
  """One (row, head, block, tile): dk and dv of the context block."""
  row, block, step = pl.program_id(0), pl.program_id(2), pl.program_id(3)
  tile = first_tile[row * tiles.num_blocks + block] + step
  last = stop_tile[row * tiles.num_blocks + block]
  # Where `tile` is past the end, look at some other; `last` decides.
  at = row * tiles.num_tiles + jnp.minimum(tile, tiles.num_tiles - 1)

  @pl.when(step == 0)
  def _():
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)

  @pl.when((tile < last) & (first[at] <= block) & (block < stop[at]))
  def _():
    p = jnp.exp(_matmul(context_k[0, 0], q[0, 0]) * scale - lse[0, 0])
    p = jnp.where(_is_seen(bounds, block, tiles), p, 0)
    ds = _matmul(context_v[0, 0], d_out[0, 0]) - delta[0, 0]
    dk_sum[...] += _matmul_nt(q[0, 0], p * ds * scale)
    dv_sum[...] += _matmul_nt(d_out[0, 0], p)

  @pl.when(step == tiles.num_tiles - 1)
  def _():
    dk_t[0, 0] = dk_sum[...].astype(dk_t.dtype)
    dv_t[0, 0] = dv_sum[...].astype(dv_t.dtype)


def _walk(first, stop, num_tiles):
  """This tile's place in the lists, and the block of this step."""
  del stop
  tile = pl.program_id(0) * num_tiles + pl.program_id(2)
  return tile, first[tile] + pl.program_id(3)


def _is_own(tiles):
  """[tile_slots, columns]: key and query have the same anchor."""
  shape = (tiles.tile_slots, tiles.tile_queries)
  key = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  # Powers of two: the column's slot, and the anchor of a slot.
  slot = jax.lax.broadcasted_iota(jnp.int32, shape, 1) & (tiles.tile_slots - 1)
  shift = tiles.anchor_slots.bit_length() - 1
  is_slot = (key & (tiles.anchor_slots - 1)) < tiles.block_size
  return is_slot & ((key >> shift) == (slot >> shift))


def _is_seen(bounds, block, tiles):
  """[block_len, columns]: the context row lies in the column's span."""
  shape = (tiles.block_len, tiles.tile_queries)
  index = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
  index = index + block * tiles.block_len
  return (index >= bounds[0, 0:1]) & (index < bounds[0, 1:2])


def _matmul(a, b):
  """a [m, k] b [k, n], b in a's dtype, summed in float32."""
  return _dot(a, b, ((1,), (0,)))


def _matmul_nt(a, b):
  """a [m, k] b [n, k]."""
  return _dot(a, b, ((1,), (1,)))


def _dot(a, b, contracted):
  # float32 means float32: the MXU would round it to bfloat16.
  is_wide = a.dtype == jnp.float32
  return jax.lax.dot_general(
    a,
    b.astype(a.dtype),
    (contracted, ((), ())),
    # Mosaic takes no other for bfloat16, whatever the program asks for.
    precision=(
      jax.lax.Precision.HIGHEST if is_wide else jax.lax.Precision.DEFAULT
    ),
    preferred_element_type=jnp.float32,
  )
