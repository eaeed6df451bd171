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
scratch rows. Nothing of size rows x context exists at any time, and what no row
of a tile sees is not visited (`draft_block_attention.blockwise`).
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jspec.kernels.draft_block_attention import blockwise
from jspec.nn import spread
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
  begins: Int[Array, 'B R T'] | None = None,
  scale: float | None = None,
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
    segments: document of each context row, 0 for padding; documents are
      contiguous.
    begins: context rows before this one are not seen by the slot (a window);
      None sees all of the document.
    scale: factor on the scores; None means H ** -0.5.

  Returns:
    The mixed values, 0 where a slot sees nothing.
  """
  is_row = (limits >= 0) & (row_segments > 0)
  own = jnp.broadcast_to(own, (*limits.shape, *own.shape[-2:]))
  first, end = _spans(limits, row_segments, segments)
  first = jnp.broadcast_to(first[..., None], q.shape[:3])
  if begins is not None:
    first = jnp.maximum(first, begins)
  return _spread(
    q,
    k,
    v,
    context_k,
    context_v,
    first,
    jnp.where(is_row, end, 0),
    own & is_row[..., None, None],
    1 / math.sqrt(q.shape[-1]) if scale is None else scale,
  )


def _spread(q, k, v, context_k, context_v, first, end, own, scale):
  """`blockwise.attend` on the mesh that is traced for, if there is one.

  A device takes its own rows, of its own sequences and key-value heads, over
  the whole context: that is gathered where tokens are shared out, and its
  gradient is summed over the devices.
  """
  arrays = (q, k, v, context_k, context_v, first, end, own)
  found = spread.now()
  if found is None:
    return blockwise.attend(*arrays, scale)
  rows, tokens = found.batch(q.shape)
  heads = found.shared(found.heads, k.shape[3])
  own_rows = PartitionSpec(rows, tokens)
  by_head = PartitionSpec(rows, tokens, None, heads)
  context = PartitionSpec(rows, None, heads)
  return jax.shard_map(
    lambda *parts: blockwise.attend(*parts, scale),
    mesh=found.mesh,
    in_specs=(*[by_head] * 3, *[context] * 2, *[own_rows] * 3),
    out_specs=by_head,
    check_vma=False,
  )(*arrays)


def _spans(limits, row_segments, segments):
  """First context row of every row's document, and the end of what it sees."""
  length = segments.shape[1]

  def of_sequence(segments, row_segments):
    # In ascending order of documents, rows of one as they lie: nothing here is
    # of size rows x context.
    order = jnp.argsort(segments, stable=True)
    begin, stop = (
      jnp.searchsorted(segments[order], row_segments, side=side, method='sort')
      for side in ('left', 'right')
    )
    is_there = begin < stop
    first = order[jnp.minimum(begin, length - 1)]
    last = order[jnp.maximum(stop - 1, 0)]
    return jnp.where(is_there, first, length), jnp.where(is_there, last, -1)

  first, last = jax.vmap(of_sequence)(segments, row_segments)
  return first, jnp.minimum(limits, last + 1)
