# SPDX-License-Identifier: MIT
"""Reference: one dense mask over context and slots, gradients by autodiff."""

import jax
import jax.numpy as jnp

from jspec.kernels.draft_block_attention import spans


def draft_block_attention(
  q, k, v, context_k, context_v, *, anchors, segments, window, scale
):
  """Same contract as `api.draft_block_attention`; the specification."""
  rows, num_anchors, block_size, num_heads, width = q.shape
  num_kv_heads = k.shape[3]
  is_live = spans.live(anchors, segments)
  index = jnp.arange(segments.shape[1])
  own = jnp.take_along_axis(segments, jnp.maximum(anchors, 0), axis=1)
  mask = (index < anchors[..., None]) & (segments[:, None] == own[..., None])
  mask = jnp.broadcast_to(
    mask[:, :, None], (rows, num_anchors, block_size, segments.shape[1])
  )
  if window is not None:
    position = anchors[..., None] + jnp.arange(block_size)
    mask &= position[..., None] - index < window
  mask = jnp.pad(mask, ((0, 0),) * 3 + ((0, block_size),), constant_values=True)

  def all_rows(context, block):
    shape = (rows, num_anchors, *context.shape[1:])
    context = jnp.broadcast_to(context[:, None], shape)
    return jnp.concatenate([context, block], axis=2)

  grouped = q.reshape(rows, num_anchors, block_size, num_kv_heads, -1, width)
  scores = jnp.einsum(
    'BATKGH,BASKH->BAKGTS',
    grouped,
    all_rows(context_k, k),
    preferred_element_type=jnp.float32,
  )
  scores = jnp.where(mask[:, :, None, None], scores * scale, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum('BAKGTS,BASKH->BATKGH', weights, all_rows(context_v, v))
  out = out.reshape(rows, num_anchors, block_size, num_heads, width)
  return jnp.where(is_live[:, :, None, None, None], out, 0)
