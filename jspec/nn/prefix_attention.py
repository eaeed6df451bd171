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
from jspec.nn import exchange, spread
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
    limits: context rows before this one are seen, in the row's own document: if
      the last of them is of another, none is. 0: none of them. Negative: there
      is no row, its output is 0 and so is every gradient.
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

  Where tokens are shared out a device takes all rows of its share of heads over
  the whole context of those (`exchange`). If heads do not share out so, it
  takes its own rows over the context of all heads, which is gathered, and whose
  gradient is summed over the devices.
  """
  arrays = [q, k, v, context_k, context_v]
  found = spread.now()
  if found is None:
    return blockwise.attend(*arrays, first, end, own, scale)
  rows, tokens = found.batch(q.shape)
  heads = found.shared(found.heads, k.shape[3])
  exchanged = exchange.find(found, q.shape, k.shape[3])
  if exchanged is not None:
    arrays, tokens = exchanged.give(*arrays), None
    heads = exchanged.within
  own_rows = PartitionSpec(rows, tokens)
  by_head = PartitionSpec(rows, tokens, None, heads)
  context = PartitionSpec(rows, None, heads)
  mixed = jax.shard_map(
    lambda *parts: blockwise.attend(*parts, scale),
    mesh=found.mesh,
    in_specs=(*[by_head] * 3, *[context] * 2, *[own_rows] * 3),
    out_specs=by_head,
    check_vma=False,
  )(*arrays, first, end, own)
  return mixed if exchanged is None else exchanged.take_back(mixed)


def _spans(limits, row_segments, segments):
  """First context row of every row's document, and the end of what it sees.

  The document is found from the last row seen: a search for it by its number
  would sort all rows, and compilers for TPUs take half a minute for a sort.
  """
  index = jnp.arange(segments.shape[1], dtype=jnp.int32)
  is_start = segments[:, 1:] != segments[:, :-1]
  is_start = jnp.pad(is_start, ((0, 0), (1, 0)))
  starts = jax.lax.cummax(jnp.where(is_start, index, 0), axis=1)
  last = jnp.clip(limits, 1, index.size) - 1
  first, own = (
    jnp.take_along_axis(x, last, axis=1) for x in (starts, segments)
  )
  sees_some = (limits > 0) & (own == row_segments)
  return first, jnp.where(sees_some, last + 1, 0)
