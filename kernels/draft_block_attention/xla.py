# SPDX-License-Identifier: MIT
"""Blockwise XLA: tiles of anchors against the context blocks they see.

For every tile of anchors the own blocks come first, then a loop with a run-time
trip count visits the context blocks between the first and the last row that
any anchor of the tile sees, with a running maximum m, normaliser z and weighted
sum o in float32. Anchors lie in ascending order, so about half of the context
is never visited, and with packed documents or a window far more.

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

from jspec.kernels.draft_block_attention import spans

TILE_ROWS = 256  # Query rows (anchors x slots x grouped heads) of a tile.
BLOCK_LEN = 128  # Context rows a loop step reads for every batch row.


def draft_block_attention(
  q, k, v, context_k, context_v, *, anchors, segments, window, scale
):
  """Same contract as `api.draft_block_attention`."""
  first, end = spans.visible(anchors, segments, q.shape[2], window)
  out = _attend(q, k, v, context_k, context_v, first, end, scale)
  is_live = spans.live(anchors, segments)
  return jnp.where(is_live[:, :, None, None, None], out, 0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(7,))
def _attend(q, k, v, context_k, context_v, first, end, scale):
  return _forward(q, k, v, context_k, context_v, first, end, scale)[0]


def _forward(q, k, v, context_k, context_v, first, end, scale):
  keys, values = context_k.swapaxes(1, 2), context_v.swapaxes(1, 2)

  def one_tile(_, tile):
    q, k, v, first, end = tile
    near = _scores(q, k) * scale
    m = jnp.max(near, axis=-1, keepdims=True)
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
    return None, ((o / z).astype(v.dtype), m + jnp.log(z))

  _, (out, lse) = jax.lax.scan(one_tile, None, _tiles(q, k, v, first, end))
  saved = (q, k, v, context_k, context_v, first, end, out, lse)
  return _join_queries(out, q.shape), saved


def _backward(scale, saved, cotangent):
  q, k, v, context_k, context_v, first, end, out, lse = saved
  keys, values = context_k.swapaxes(1, 2), context_v.swapaxes(1, 2)

  def gradients(q, d_out, k, v, lse, delta, mask):
    p = jnp.exp(_scores(q, k) * scale - lse)
    p = p if mask is None else jnp.where(mask, p, 0)
    ds = p * (_scores(d_out, v) - delta) * scale
    return _mix(ds, k), _mix(ds.mT, q), _mix(p.mT, d_out)

  def one_tile(d_context, tile):
    q, k, v, first, end, out, lse, d_out = tile
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
    dq, dk, dv = gradients(q, d_out, k, v, *stats, None)
    i, stop = _visited(first, end)
    state = (i, _flat(dq), *d_context)
    _, dq, *d_context = jax.lax.while_loop(lambda s: s[0] < stop, body, state)
    out = (dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype))
    return tuple(d_context), out

  zeros = jnp.zeros(keys.shape, jnp.float32)
  inputs = _tiles(q, k, v, first, end)
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


def _tiles(q, k, v, first, end):
  """The inputs of a scan over tiles."""
  tile_len = _tile_len(q.shape, k.shape[3])
  own = (_split(x, tile_len).transpose(0, 1, 4, 2, 3, 5) for x in (k, v))
  spans = (_split(x, tile_len) for x in (first, end))
  return (_tile_queries(q, k.shape[3]), *own, *spans)


def _split(x, tile_len):
  """[B A ...] -> [tiles B tile_len ...], padded with zeros."""
  padding = -x.shape[1] % tile_len
  x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
  x = x.reshape(x.shape[0], -1, tile_len, *x.shape[2:])
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
  """[tiles B K tile_len T H] -> [B A T K H]."""
  x = x.transpose(1, 0, 3, 4, 2, 5)
  return x.reshape(shape[0], -1, *shape[2:])[:, : shape[1]]


def _flat(x):
  """[B K tile_len rows .] -> [B K tile_len*rows .]."""
  return x.reshape(*x.shape[:2], -1, x.shape[-1])
