# SPDX-License-Identifier: MIT
"""Causal attention of packed rows without a cache, for rows of any length.

A token sees its own document up to itself, a window of it. Rows of up to
`LONGEST_DENSE` tokens have matrices of scores (`dense_attention`), a block of
queries against all keys that any of them may see, which is half of S x S:

  queries 0..63     keys 0..63
  queries 64..127   keys 0..127     with a window of 32: keys 33..127

Longer ones go through blocks of keys with a running softmax
(`prefix_attention`), and nothing of size S x S exists. Both give the same up to
rounding, but for tokens of padding, which mean nothing.

A sink is one more key of every token, with the logit given and no value. It
lies in two columns of its own, so that queries and keys stay what they are, and
the logit keeps its digits in bfloat16:

  x = sink / scale    q' = [q, x, x - x in q's dtype]    k' = [k, 0, 0]
  the sink's own      k' = [0, 1, 1]                     v' = 0
"""

import functools
import math
from collections.abc import Callable, Collection

import jax.numpy as jnp

from jspec.nn import dense_attention, prefix_attention, spread
from jspec.typing import Array, Float, Int

# Tokens of a row; 32 heads then have 2 GB of scores.
LONGEST_DENSE = 4096
# Blocks of queries, each of which is compiled, and the fewest tokens of one.
_MOST_BLOCKS, _FEWEST_TOKENS = 8, 64


def of(
  positions: Int[Array, 'B S'],
  segments: Int[Array, 'B S'],
  windows: Collection[int | None],
) -> Callable[..., Array]:
  """Attention over these rows; masks are made once for all layers.

  Args:
    positions: of the tokens in their documents.
    segments: documents, 0 for padding; contiguous.
    windows: all that layers have: tokens seen, itself included; None for all.

  Returns:
    `attend(window, q, k, v, scale, sinks)`, with q [B S N H], k and v
    [B S K H], all rotated, scale None for H ** -0.5 and sinks [N] or None; it
    gives the mixed values, as q.
  """
  if segments.shape[1] > LONGEST_DENSE:
    return functools.partial(_blockwise, segments)
  masks = {
    window: dense_attention.visible(positions, segments, window)
    for window in set(windows)
  }

  def attend(window, q, k, v, scale, sinks):
    k, v = spread.context(k), spread.context(v)
    mixed = []
    for start, stop, first in _blocks(q.shape[1], window):
      own, seen = slice(start, stop), slice(first, stop)
      mixed.append(
        dense_attention.attend(
          q[:, own],
          k[:, seen],
          v[:, seen],
          masks[window][:, own, seen],
          scale=scale,
          sinks=sinks,
        )
      )
    return jnp.concatenate(mixed, axis=1)

  return attend


def _blocks(length, window):
  """Begin and end of every block of queries, and the first key they see."""
  found = spread.now()
  # Where devices share out the tokens, each has a block already.
  num = 1 if found is not None and found.tokens else _MOST_BLOCKS
  size = max(_FEWEST_TOKENS, -(-length // num))
  for start in range(0, length, size):
    first = 0 if window is None else max(0, start - window + 1)
    yield start, min(start + size, length), first


def _blockwise(
  segments: Int[Array, 'B S'],
  window: int | None,
  q: Float[Array, 'B S N H'],
  k: Float[Array, 'B S K H'],
  v: Float[Array, 'B S K H'],
  scale: float | None,
  sinks: Float[Array, 'N'] | None,
) -> Float[Array, 'B S N H']:
  width = q.shape[-1]
  scale = 1 / math.sqrt(width) if scale is None else scale
  num_own = 0 if sinks is None else 1
  if sinks is not None:
    whole = sinks.astype(jnp.float32) / scale
    rough = whole.astype(q.dtype)
    columns = jnp.stack([rough, (whole - rough).astype(q.dtype)], axis=-1)
    columns = jnp.broadcast_to(columns, (*q.shape[:-1], 2))
    q = jnp.concatenate([q, columns], axis=-1)
    k, v = (jnp.pad(x, ((0, 0),) * 3 + ((0, 2),)) for x in (k, v))
  own_v = jnp.zeros((*k.shape[:2], num_own, *k.shape[2:]), k.dtype)
  own_k = own_v if sinks is None else own_v.at[..., -2:].set(1)
  index = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
  mixed = prefix_attention.prefix_attention(
    q[:, :, None],
    own_k,
    own_v,
    k,
    v,
    own=jnp.ones((1, num_own), bool),
    limits=index + 1,
    row_segments=segments,
    segments=segments,
    begins=None if window is None else (index - window + 1)[..., None],
    scale=scale,
  )
  return mixed[:, :, 0, :, :width]
