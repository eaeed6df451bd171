# SPDX-License-Identifier: MIT
"""Which context rows a slot sees, as one interval [first, end).

  end   = a                                            the anchor's row
  first = max(start of a's document, a + j - window + 1)      j the slot

Documents lie contiguous in a packed sequence, so no mask of A x S is needed:
two numbers a slot tell blockwise code what to visit and what to mask.
"""

import jax
import jax.numpy as jnp


def live(anchors, segments):
  """Whether each anchor [B, A] is one: not negative and not in padding."""
  own = jnp.take_along_axis(segments, jnp.maximum(anchors, 0), axis=1)
  return (anchors >= 0) & (own > 0)


def visible(anchors, segments, block_size, window):
  """First visible row [B, A, T] and the end [B, A] of every anchor's span.

  An anchor that is not live sees nothing: its span is [0, 0).
  """
  is_live = live(anchors, segments)
  index = jnp.arange(segments.shape[1], dtype=jnp.int32)
  is_start = segments[:, 1:] != segments[:, :-1]
  is_start = jnp.pad(is_start, ((0, 0), (1, 0)))
  starts = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
  first = jnp.take_along_axis(starts, jnp.maximum(anchors, 0), axis=1)
  end = jnp.where(is_live, anchors, 0).astype(jnp.int32)
  first = jnp.where(is_live, first, 0)[..., None]
  slot = jnp.arange(block_size, dtype=jnp.int32)
  if window is None:
    return jnp.broadcast_to(first, (*end.shape, block_size)), end
  near = end[..., None] + slot - window + 1
  return jnp.where(is_live[..., None], jnp.maximum(first, near), 0), end
