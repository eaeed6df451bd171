# SPDX-License-Identifier: MIT
"""Training attention of drafters that are run on their own output.

A sequence carries R rows (usually one a token), each with T slots. A slot
attends to a prefix of context rows that all rows share, and to U keys that
belong to its own row alone:

  context  rows s < limits[r] of the row's own segment
  own      the keys of the row that `own` marks for the slot

  o = softmax([q k_s, q k_u] * scale) [v_s, v_u]

Test-time training (EAGLE-3, arXiv 2503.01840, section 3.1): the context is what
the layer wrote when it saw true features, own are the keys the row wrote at the
simulated steps since then; decoding computes the same over committed pages and
scratch rows. Dense scores would be rows x context for every step, so a loop
takes a chunk of rows at a time and the gradient computes its scores again:
memory is B x row_chunk x T x N x (S + U), whatever R is.
"""

import math

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float, Int


def prefix_attention(
  q: Float[Array, 'B R T N H'],
  k: Float[Array, 'B R U K H'],
  v: Float[Array, 'B R U K H'],
  context_k: Float[Array, 'B S K H'],
  context_v: Float[Array, 'B S K H'],
  *,
  own: Bool[Array, '*rows T U'],
  limits: Int[Array, 'B R'],
  row_segments: Int[Array, 'B R'],
  segments: Int[Array, 'B S'],
  scale: float | None = None,
  row_chunk: int = 128,
) -> Float[Array, 'B R T N H']:
  """Attends over a prefix of the context and over the row's own keys.

  Differentiable in all five arrays; one softmax over both parts, in float32.
  The batch axis is never looped over, so that it may be sharded.

  Args:
    q: queries, rotated.
    k: keys of each row alone, rotated; U may be 0.
    v: their values.
    context_k: keys all rows share, rotated; finite, padding included.
    context_v: their values; finite, padding included.
    own: own keys each slot sees, [T, U] or with leading axes that broadcast to
      [B, R].
    limits: context rows before this one are seen. 0: none of them. Negative:
      there is no row, its output is 0 and so is every gradient.
    row_segments: document of each row, 0 for padding (no row either).
    segments: document of each context row, 0 for padding.
    scale: factor on the scores; None means H ** -0.5.
    row_chunk: rows of each batch entry whose scores exist at once.

  Returns:
    The mixed values, 0 where a slot sees nothing.
  """
  rows, num_rows, num_slots, num_heads, width = q.shape
  num_kv_heads = k.shape[3]
  scale = 1 / math.sqrt(width) if scale is None else scale
  own = jnp.broadcast_to(own, (rows, num_rows, *own.shape[-2:]))
  size = min(row_chunk, num_rows)
  groups = num_heads // num_kv_heads
  folded = q.reshape(rows, num_rows, num_slots, num_kv_heads, groups, width)
  inputs = (folded * scale, k, v, own, limits, row_segments)
  # Rows that fill up the last chunk have segment 0.
  chunks = tuple(_split(x, size) for x in inputs)
  index = jnp.arange(segments.shape[1], dtype=limits.dtype)

  @jax.checkpoint
  def one_chunk(context_k, context_v, chunk):
    q, k, v, own, limits, row_segments = chunk
    is_row = (limits >= 0) & (row_segments > 0)
    is_seen = row_segments[..., None] == segments[:, None]
    is_seen &= is_row[..., None] & (index < limits[..., None])
    own = own & is_row[..., None, None]
    far = _product('BRTKGH,BSKH->BRTKGS', q, context_k)
    far = jnp.where(is_seen[:, :, None, None, None], far, -jnp.inf)
    near = _product('BRTKGH,BRUKH->BRTKGU', q, k)
    near = jnp.where(own[:, :, :, None, None], near, -jnp.inf)
    scores = jnp.concatenate([far, near], axis=-1)
    top = jnp.max(scores, axis=-1, keepdims=True)
    top = jax.lax.stop_gradient(jnp.where(top > -jnp.inf, top, 0.0))
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    far, near = jnp.split(weights.astype(v.dtype), [far.shape[-1]], axis=-1)
    mixed = _product('BRTKGS,BSKH->BRTKGH', far, context_v)
    mixed += _product('BRTKGU,BRUKH->BRTKGH', near, v)
    return (mixed / jnp.where(total > 0, total, 1.0)).astype(v.dtype)

  def body(carry, chunk):
    return carry, one_chunk(context_k, context_v, chunk)

  _, out = jax.lax.scan(body, None, chunks)
  out = jnp.moveaxis(out, 0, 1).reshape(rows, -1, num_slots, num_heads, width)
  return out[:, :num_rows]


def _product(equation, a, b):
  return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def _split(x, size):
  """[B R ...] -> [chunks B size ...], padded with zeros."""
  num_chunks = -(-x.shape[1] // size)
  padding = num_chunks * size - x.shape[1]
  x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
  x = x.reshape(x.shape[0], num_chunks, size, *x.shape[2:])
  return jnp.moveaxis(x, 1, 0)
