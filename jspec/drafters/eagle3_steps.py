# SPDX-License-Identifier: MIT
"""The simulated steps of test-time training (arXiv 2503.01840, section 3.1).

  step 0   row i: (token i + 1, feature_i),        at position i
  step s   row i: (token i + 1 + s, output of step s - 1), at position i + s

Row i sees the step-0 keys of rows up to i and its own keys of steps 1 to s,
never another row's of those steps: on the grid of steps and rows, the first
line up to i and then the diagonal. Rows are therefore independent but for step
0, whose keys and values are made for the whole sequence, and any of them can
be run alone.
"""

import functools
from collections.abc import Callable

import jax.numpy as jnp

from jspec.drafters import anchors as anchors_lib
from jspec.drafters import base, eagle3_layer
from jspec.nn import prefix_attention, remat, spread
from jspec.typing import Array, Float


def run(
  layer: eagle3_layer.Layer,
  embedding: Float[Array, 'V D'],
  features: Float[Array, 'B S D'],
  fed_back: Callable[[Array], Array],
  batch: base.DraftBatch,
  at: anchors_lib.Anchors,
  num_steps: int,
) -> Float[Array, 'B A G D']:
  """Outputs of every step of the row before each anchor.

  Args:
    layer: the decoder layer.
    embedding: of the target.
    features: fused taps of the sequence.
    fed_back: from a step's output to what the next one takes for a feature.
    batch: tokens, positions and documents. A token of another document counts
      as token 0; no label of the row lies behind it.
    at: anchors; the row of the first token of a sequence does not exist.
    num_steps: G.
  """
  length = batch.tokens.shape[1]
  row = jnp.maximum(at.index - 1, 0)
  segment = anchors_lib.gather(batch.segments, row)
  position = anchors_lib.gather(batch.positions, row)
  limits = jnp.where(at.keep & (at.index > 0), row + 1, -1)

  def embedded(index, own):
    """Tokens at `index`, as long as they belong to the document `own`."""
    inside = jnp.minimum(index, length - 1)
    token = anchors_lib.gather(batch.tokens, inside)
    other = anchors_lib.gather(batch.segments, inside)
    token = jnp.where((other == own) & (index < length), token, 0)
    return spread.lookup(embedding, token)

  every = jnp.broadcast_to(jnp.arange(length), batch.tokens.shape)
  features = spread.stream(features)
  x = layer.inputs(embedded(every + 1, batch.segments), features)
  context = layer.rows(x, *layer.turns(batch.positions))
  nothing = jnp.zeros((*row.shape, 0, *context[0].shape[2:]), x.dtype)
  own = (nothing, nothing)
  x, hidden = (anchors_lib.near(y, at, (-1,))[:, :, 0] for y in (x, features))

  def advance(step, x, hidden, own, turns):
    mixed = prefix_attention.prefix_attention(
      layer.queries(x, *turns)[:, :, None],
      *own,
      *context,
      own=jnp.ones((1, step), bool),
      limits=limits,
      row_segments=segment,
      segments=batch.segments,
    )
    return spread.stream(layer.finish(hidden, mixed[:, :, 0]))

  out = []
  for step in range(num_steps):
    turns = layer.turns(position + step)
    if step:
      hidden = fed_back(out[-1])
      x = layer.inputs(embedded(row + 1 + step, segment), hidden)
      new = layer.rows(x, *turns)
      own = tuple(
        jnp.concatenate([old, one[:, :, None]], axis=2)
        for old, one in zip(own, new, strict=True)
      )
    run_step = remat.layer(functools.partial(advance, step))
    out.append(run_step(x, hidden, own, turns))
  return jnp.stack(out, axis=2)
