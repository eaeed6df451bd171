# SPDX-License-Identifier: MIT
"""Blockwise attention of short blocks, each over a span of a shared context.

An anchor has T query slots, U keys of its own and the context rows
first[slot] <= s < end. For every tile of anchors the own keys come first, then
a loop with a run-time trip count visits the context blocks between the first
and the last row that any anchor of the tile sees, with a running maximum m,
normaliser z and weighted sum o in float32. Where anchors lie in ascending
order about half of the context is never visited, and with packed documents or
a window far more.

The gradient recomputes the scores of a block from the log-sum-exp of each
slot, so that nothing of size A x T x S exists at any time:

  p = exp(s - lse);  dv = p^T do;  ds = p * (do v^T - sum(do * o));
  dq = ds k;  dk = ds^T q

Query heads that share a key-value head are folded into the rows of a tile. The
batch axis is never looped over, so that it may be sharded.
"""

import functools

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float, Int

TILE_ROWS = 256  # Query rows (anchors x slots x grouped heads) of a tile.
BLOCK_LEN = 128  # Context rows a loop step reads for every batch row.
LOWEST = -1e30  # Below any score: the maximum of nothing, without inf - inf.


def attend(
  q: Float[Array, 'B A T N H'],
  k: Float[Array, 'B A U K H'],
  v: Float[Array, 'B A U K H'],
  context_k: Float[Array, 'B S K H'],
  context_v: Float[Array, 'B S K H'],
  first: Int[Array, 'B A T'],
  end: Int[Array, 'B A'],
  own: Bool[Array, 'B A T U'] | None,
  scale: float,
) -> Float[Array, 'B A T N H']:
  """Attends over each anchor's own keys and its span of the context.

  Differentiable in the first five arrays.

  Args:
    q: queries, rotated; finite, as are all keys and values.
    k: keys of each anchor alone, rotated; U may be 0.
    v: their values.
    context_k: keys all anchors share, rotated.
    context_v: their values.
    first: first context row each slot sees.
    end: the row behind the last that each anchor's slots see.
    own: own keys each slot sees; None: all.
    scale: factor on the scores.

  Returns:
    The mixed values, 0 where a slot sees nothing.
  """
  return _attend(q, k, v, context_k, context_v, first, end, own, scale)


@functools.partial(jax.custom_vjp, nondiff_argnums=(8,))
def _attend(q, k, v, context_k, context_v, first, end, own, scale):
  return _forward(q, k, v, context_k, context_v, first, end, own, scale)[0]


def _forward(q, k, v, context_k, context_v, first, end, own, scale):
  keys, values = context_k.swapaxes(1, 2), context_v.swapaxes(1, 2)

  def one_tile(_, tile):
    q, k, v, first, end, own = tile
    near = _where(own, _scores(q, k) * scale, -jnp.inf)
    m = jnp.max(near, axis=-1, keepdims=True, initial=LOWEST)
    weights = jnp.exp(near - m)
    z = jnp.sum(weights, axis=-1, keepdims=True)
    o = _mix(weights, v)
    flat, bounds = _flat(q), _bounds(first, end, q.shape[3])

    def body(state):
      i, m, z, o = state
      start, mask = _block(i, bounds, keys.shape[2])
      far = _scores(flat, _slice(keys, start)) * scale
      far = jnp.where(mask, far, -jnp.inf)
      m_next = jnp.maximum(m, jnp.max(far, axis=-1, keepdims=True))
      decay = jnp.exp(m - m_next)
      weights = jnp.exp(far - m_next)
      z = z * decay + jnp.sum(weights, axis=-1, keepdims=True)
      o = o * decay + _mix(weights, _slice(values, start))
      return i + 1, m_next, z, o

    i, stop = _visited(first, end)
    state = (i, _flat(m), _flat(z), _flat(o))
    _, m, z, o = jax.lax.while_loop(lambda s: s[0] < stop, body, state)
    z = jnp.where(z > 0, z, 1)  # Nothing seen: o is 0.
    return None, ((o / z).astype(v.dtype), m + jnp.log(z))

  tiles = _tiles(q, k, v, first, end, own)
  _, (out, lse) = jax.lax.scan(one_tile, None, tiles)
  saved = (q, k, v, context_k, context_v, first, end, own, out, lse)
  return _join_queries(out, q.shape), saved


def _backward(scale, saved, cotangent):
  q, k, v, context_k, context_v, first, end, own, out, lse = saved
  keys, values = context_k.swapaxes(1, 2), context_v.swapaxes(1, 2)

  def gradients(q, d_out, k, v, lse, delta, mask):
    p = jnp.exp(_scores(q, k) * scale - lse)
    p = _where(mask, p, 0)
    ds = p * (_scores(d_out, v) - delta) * scale
    return _mix(ds, k), _mix(ds.mT, q), _mix(p.mT, d_out)

  def one_tile(d_context, tile):
    q, k, v, first, end, own, out, lse, d_out = tile
    flat, flat_d_out = _flat(q), _flat(d_out)
    delta = flat_d_out.astype(jnp.float32) * out.astype(jnp.float32)
    delta = jnp.sum(delta, axis=-1, keepdims=True)
    bounds = _bounds(first, end, q.shape[3])

    def body(state):
      i, dq, d_keys, d_values = state
      start, mask = _block(i, bounds, keys.shape[2])
      key, value = _slice(keys, start), _slice(values, start)
      more = gradients(flat, flat_d_out, key, value, lse, delta, mask)
      d_keys = _add(d_keys, more[1], start)
      d_values = _add(d_values, more[2], start)
      return i + 1, dq + more[0], d_keys, d_values

    stats = (x.reshape(*q.shape[:-1], 1) for x in (lse, delta))
    dq, dk, dv = gradients(q, d_out, k, v, *stats, own)
    i, stop = _visited(first, end)
    state = (i, _flat(dq), *d_context)
    _, dq, *d_context = jax.lax.while_loop(lambda s: s[0] < stop, body, state)
    out = (dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype))
    return tuple(d_context), out

  zeros = jnp.zeros(keys.shape, jnp.float32)
  inputs = _tiles(q, k, v, first, end, own)
  inputs += (out, lse, _tile_queries(cotangent, k.shape[3]))
  (d_keys, d_values), (dq, dk, dv) = jax.lax.scan(
    one_tile, (zeros, zeros), inputs
  )
  return (
    _join_queries(dq, q.shape),
    _join_own(dk, k.shape),
    _join_own(dv, v.shape),
    d_keys.swapaxes(1, 2).astype(context_k.dtype),
    d_values.swapaxes(1, 2).astype(context_v.dtype),
    None,
    None,
    None,
  )


_attend.defvjp(_forward, _backward)


# --- products, accumulated in float32 ---


def _scores(q, k):
  return jnp.einsum(
    '...QH,...SH->...QS', q, k, preferred_element_type=jnp.float32
  )


def _mix(weights, v):
  return jnp.einsum(
    '...QS,...SH->...QH',
    weights.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )


def _where(mask, x, other):
  return x if mask is None else jnp.where(mask, x, other)


# --- blocks of the context ---


def _visited(first, end):
  """The first context block that a tile sees, and the end of them."""
  is_seen = end[..., None] > first
  lowest = jnp.min(jnp.where(is_seen, first, jnp.max(end)))
  return lowest // BLOCK_LEN, -(-jnp.max(end) // BLOCK_LEN)


def _bounds(first, end, rows_per_anchor):
  """First and end of every row of a tile, [B, 1, rows, 1]."""
  batch, num_anchors, block_size = first.shape
  groups = rows_per_anchor // block_size
  first = jnp.repeat(first, groups, axis=2)
  end = jnp.broadcast_to(end[..., None], first.shape)
  shape = (batch, 1, num_anchors * rows_per_anchor, 1)
  return first.reshape(shape), end.reshape(shape)


def _block(i, bounds, context_len):
  """Where block i starts, and which of its rows each tile row sees.

  The last block is moved back to fit; what came before is masked.
  """
  size = min(BLOCK_LEN, context_len)
  start = jnp.minimum(i * BLOCK_LEN, context_len - size)
  index = start + jnp.arange(size)
  first = jnp.maximum(bounds[0], i * BLOCK_LEN)
  return start, (index >= first) & (index < bounds[1])


def _slice(rows, start):
  size = min(BLOCK_LEN, rows.shape[2])
  return jax.lax.dynamic_slice_in_dim(rows, start, size, axis=2)


def _add(rows, more, start):
  more = _slice(rows, start) + more
  return jax.lax.dynamic_update_slice_in_dim(rows, more, start, axis=2)


# --- tiles of anchors ---


def _tile_len(shape, num_kv_heads):
  """Anchors of a tile, for queries [B A T N H]: about equal tiles."""
  _, num_anchors, block_size, num_heads, _ = shape
  rows_per_anchor = block_size * num_heads // num_kv_heads
  most = max(1, TILE_ROWS // rows_per_anchor)
  return -(-num_anchors // -(-num_anchors // most))


def _tiles(q, k, v, first, end, own):
  """The inputs of a scan over tiles."""
  num_kv_heads = k.shape[3]
  tile_len = _tile_len(q.shape, num_kv_heads)
  keys = (_split(x, tile_len).transpose(0, 1, 4, 2, 3, 5) for x in (k, v))
  spans = (_split(x, tile_len) for x in (first, end))
  if own is not None:
    # A row for every query row of an anchor; the same for all key-value heads.
    own = jnp.repeat(own, q.shape[3] // num_kv_heads, axis=2)
    own = _split(own, tile_len)[:, :, None]
  return (_tile_queries(q, num_kv_heads), *keys, *spans, own)


def _split(x, tile_len):
  """[B A ...] -> [tiles B tile_len ...], padded with zeros."""
  num_tiles = -(-x.shape[1] // tile_len)
  padding = num_tiles * tile_len - x.shape[1]
  x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
  x = x.reshape(x.shape[0], num_tiles, tile_len, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)


def _tile_queries(q, num_kv_heads):
  """[B A T N H] -> [tiles B K tile_len T*G H]."""
  x = _split(q, _tile_len(q.shape, num_kv_heads))
  x = x.reshape(*x.shape[:4], num_kv_heads, -1, x.shape[-1])
  x = x.transpose(0, 1, 4, 2, 3, 5, 6)
  return x.reshape(*x.shape[:4], -1, x.shape[-1])


def _join_queries(x, shape):
  """The inverse of `_tile_queries`, of [tiles B K tile_len*T*G H]."""
  batch, num_anchors, block_size, num_heads, width = shape
  num_kv_heads = x.shape[2]
  groups = num_heads // num_kv_heads
  x = x.reshape(*x.shape[:3], -1, block_size, groups, width)
  x = x.transpose(1, 0, 3, 4, 2, 5, 6)
  return x.reshape(batch, -1, *shape[2:])[:, :num_anchors]


def _join_own(x, shape):
  """[tiles B K tile_len U H] -> [B A U K H]."""
  num_anchors = x.shape[0] * x.shape[3]
  x = x.transpose(1, 0, 3, 4, 2, 5)
  return x.reshape(shape[0], num_anchors, *shape[2:])[:, : shape[1]]


def _flat(x):
  """[B K tile_len rows .] -> [B K tile_len*rows .]."""
  return x.reshape(*x.shape[:2], -1, x.shape[-1])
