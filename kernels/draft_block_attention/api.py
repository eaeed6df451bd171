# SPDX-License-Identifier: MIT
"""`draft_block_attention`: the attention of draft blocks in training.

A sequence of S tokens carries A blocks of T slots. A block starts at an anchor,
whose row in the sequence is `anchors[b, a]`, and its slots stand for the
positions from there on. A slot attends to

  context   rows before the anchor (not at it), of the anchor's own document
  block     all slots of its own block, both directions

and to nothing else: not to other blocks, documents, or padding. With a window,
slot j sees the context row s if (a + j) - s < window. Both parts share one
softmax, merged by log-sum-exp in float32:

  o = softmax([q k_s, q k_t] * scale) [v_s, v_t]

Decoding computes the same with `block_tree_attention`, for one block a row.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jspec.kernels import choose
from jspec.kernels.draft_block_attention import ref, spans, xla

MAX_HEAD_WIDTH = 256
DTYPES = ('float32', 'bfloat16', 'float16')


def draft_block_attention(
  q: Float[Array, 'B A T N H'],
  k: Float[Array, 'B A T K H'],
  v: Float[Array, 'B A T K H'],
  context_k: Float[Array, 'B S K H'],
  context_v: Float[Array, 'B S K H'],
  *,
  anchors: Int[Array, 'B A'],
  segments: Int[Array, 'B S'],
  window: int | None = None,
  scale: float | None = None,
  implementation: str | Sequence[str] | None = None,
) -> Float[Array, 'B A T N H']:
  """Attends over the context before each anchor and over its own block.

  Differentiable in all five arrays. Invisible rows get a gradient of exactly 0.

  Args:
    q: queries of the slots, rotated.
    k: keys of the slots, rotated.
    v: values of the slots.
    context_k: keys of the sequence, rotated; finite, padding included.
    context_v: values of the sequence; finite, padding included.
    anchors: row of each anchor in the sequence. Negative, or a row of padding:
      there is no block, the output is 0 and so is every gradient. Ascending
      anchors are fastest (blocks that no neighbour sees are skipped).
    segments: document of each row, 0 for padding; documents are contiguous.
    window: tokens a slot sees, itself included, at least T so that a block is
      never cut; None means all.
    scale: factor on the scores; None means H ** -0.5.
    implementation: 'reference', 'xla', 'tpu', a list of names (the first that
      can wins), or None for the best here (`choose.best`). A named one never
      falls back silently.

  Raises:
    ValueError: shapes, dtype or window that no implementation takes, or an
      implementation that does not exist.
    NotImplementedError: the implementation named cannot do this.
  """
  _check(q, k, v, context_k, context_v, anchors, segments, window)
  is_live = spans.live(anchors, segments)[:, :, None, None, None]
  # What a missing block holds must not reach a product, not even as 0 * NaN.
  q, k, v = (jnp.where(is_live, x, 0) for x in (q, k, v))
  named = dict(
    anchors=anchors,
    segments=segments,
    window=window,
    scale=1 / math.sqrt(q.shape[-1]) if scale is None else scale,
  )
  return choose.run(
    IMPLEMENTATIONS, implementation, q, k, v, context_k, context_v, **named
  )


def _gpu(*args, **named):
  del args, named
  raise NotImplementedError(
    'draft_block_attention has no kernel for GPUs: use xla there'
  )


def _check(q, k, v, context_k, context_v, anchors, segments, window):
  """Refuses what cannot be meant, before anything is traced further."""
  rows, num_anchors, block_size, num_heads, width = q.shape
  length, num_kv_heads = context_k.shape[1:3]
  own = (rows, num_anchors, block_size, num_kv_heads, width)
  expected = dict(
    k=(k, own),
    v=(v, own),
    context_k=(context_k, (rows, length, num_kv_heads, width)),
    context_v=(context_v, (rows, length, num_kv_heads, width)),
    anchors=(anchors, (rows, num_anchors)),
    segments=(segments, (rows, length)),
  )
  for name, (array, shape) in expected.items():
    _expect(
      array.shape == shape,
      f'{name} has shape {array.shape}; it must be {shape} to fit q {q.shape}'
      f' and context_k {context_k.shape}',
    )
  for name, array in dict(q=q, k=k, v=v, context_k=context_k).items():
    _expect(
      str(array.dtype) in DTYPES,
      f'{name} is {array.dtype}; cast it to one of {", ".join(DTYPES)}',
    )
  _expect(
    1 <= width <= MAX_HEAD_WIDTH,
    f'heads are {width} wide; at most {MAX_HEAD_WIDTH} is supported',
  )
  _expect(
    num_heads % num_kv_heads == 0,
    f'{num_heads} query heads do not divide among {num_kv_heads} key-value'
    ' heads',
  )
  _expect(
    window is None
    or (not isinstance(window, jax.Array) and window >= block_size),
    f'window={window}: give a whole number from {block_size} (the slots of a'
    ' block), or None',
  )


def _expect(is_good, message):
  if not is_good:
    raise ValueError(f'draft_block_attention: {message}')


IMPLEMENTATIONS = {
  'gpu': _gpu,
  'reference': ref.draft_block_attention,
  'tpu': choose.late(
    'jspec.kernels.draft_block_attention.tpu', 'draft_block_attention'
  ),
  'xla': xla.draft_block_attention,
}
