# SPDX-License-Identifier: MIT
"""The simulated rounds that MTP is trained on.

  step 0   row i: (token i + 1, the target's state i)     at position i
  step s   row i: (its own draft, or token i + 1 + s; its state of step s - 1)
                                                          at position i + s

Row i sees the step-0 rows before it and its own rows of all steps. So rows
depend on each other through step 0 alone, which runs on the whole sequence, and
later steps and the loss can take any subset of the rows.
"""

import functools
from typing import Any

import jax.numpy as jnp

from jspec.drafters import anchors, base, mtp_loss, vocab
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import prefix_attention, remat, spread
from jspec.typing import Array, Bool, Float, Int


def run(
  drafter: Any, batch: base.DraftBatch, rows: Int[Array, 'B A'] | None
) -> tuple[Float[Array, 'B A G D'], Int[Array, 'B A G']]:
  """Every step of the rows given, by their index, or of all.

  Args:
    drafter: an `MTP`.
    batch: the sequences.
    rows: indices into the sequence; one of padding sees nothing but itself.
      None: every token, without a gather over those that hold others.

  Returns:
    What the head sees, and the column it likes best. What of the columns is not
    used is not computed, under jit.
  """
  config, segments = drafter.loss_config, batch.segments

  def at_rows(x):
    return x if rows is None else anchors.gather(x, rows)

  every = jnp.broadcast_to(jnp.arange(segments.shape[1]), segments.shape)
  positions, own_segments = at_rows(batch.positions), at_rows(segments)
  states = drafter.first_states(batch.taps)
  following = mtp_loss.following(batch.tokens, segments, 1)
  x = drafter.inputs(following, states, is_zeroed(drafter, batch.positions, 0))
  x = spread.stream(x)
  q, k, v = drafter.layer.before_attention(x, batch.positions)
  index = at_rows(every)
  context, x = (k, v), at_rows(x)
  q, keys, values = at_rows(q), [at_rows(k)], [at_rows(v)]

  def advance(step, x, q, keys, values):
    # Its own key of step 0 is among the row's own: what it shares with the
    # others are the rows before.
    mixed = prefix_attention.prefix_attention(
      q[:, :, None],
      jnp.stack(keys, axis=2),
      jnp.stack(values, axis=2),
      *context,
      own=jnp.ones((1, step + 1), bool),
      limits=index,
      row_segments=own_segments,
      segments=segments,
    )
    return drafter.outputs(
      spread.stream(drafter.layer.after_attention(x, mixed[:, :, 0]))
    )

  hidden, drafted = [], []
  for step in range(config.ttt_length):
    if step:
      if config.on_policy:
        tokens = vocab.to_target(drafted[-1], drafter.token_ids())
      else:
        tokens = at_rows(mtp_loss.following(batch.tokens, segments, 1 + step))
      zeroed = is_zeroed(drafter, positions, step)
      x = drafter.inputs(tokens, states, zeroed)
      q, k, v = drafter.layer.before_attention(x, positions + step)
      keys.append(k)
      values.append(v)
    run_step = remat.layer(functools.partial(advance, step))
    states, normed = run_step(x, q, keys, values)
    hidden.append(normed)
    best = linear_xent.linear_argmax(
      spread.flat(normed[:, :, None]),
      drafter.head[...],
      row_chunk=config.chunk,
    )
    drafted.append(best.reshape(index.shape))
  return jnp.stack(hidden, axis=2), jnp.stack(drafted, axis=2)


def is_zeroed(
  drafter: Any, positions: Int[Array, 'B A'], step: int
) -> Bool[Array, 'B A']:
  """Where the embedding fed at a simulated step is zeros."""
  rule = drafter.config.zero_first_embedding
  if rule == 'never' or (rule == 'first_step' and step > 0):
    return jnp.zeros(positions.shape, bool)
  return positions == 0
