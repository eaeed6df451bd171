# SPDX-License-Identifier: MIT
"""The XLA back end: blockwise attention over the span before each anchor."""

import jax.numpy as jnp

from jspec.kernels.draft_block_attention import blockwise, spans


def draft_block_attention(
  q, k, v, context_k, context_v, *, anchors, segments, window, scale
):
  """Same contract as `api.draft_block_attention`."""
  first, end = spans.visible(anchors, segments, q.shape[2], window)
  out = blockwise.attend(q, k, v, context_k, context_v, first, end, None, scale)
  is_live = spans.live(anchors, segments)
  return jnp.where(is_live[:, :, None, None, None], out, 0)
