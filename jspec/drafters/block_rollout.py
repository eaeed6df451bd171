# SPDX-License-Identifier: MIT
"""What a block drafter would propose during training, for the target to judge.

On-policy distillation (`on_policy`) wants the drafter's own greedy blocks at
some anchors, made as decoding makes them: heads that see the token before see
the drafted one. The same slots are then scored with those tokens before them,
so what is judged and what is trained is the drafter as it decodes.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  block_steps,
  on_policy,
  sequential,
  vocab,
)
from jspec.typing import Array, Float, Int, Key


def propose(
  drafter: Any, batch: base.DraftBatch, key: Key[Array, '']
) -> tuple[anchors_lib.Anchors, Int[Array, 'B A G']]:
  """Greedy blocks at freshly drawn anchors, as target ids; no gradient."""
  config = drafter.loss_config
  anchors = anchors_lib.sample(
    batch.is_answer, batch.segments, config.on_policy_anchors, key
  )
  hidden = jax.lax.stop_gradient(drafter.train_hidden(batch, anchors))
  tokens = anchors_lib.gather(batch.tokens, anchors.index)

  def one(inputs):
    # A column of blocks, one of every row: few logits at a time.
    states, anchor = inputs
    source = block_steps.build(drafter, states, anchor)
    draft = sequential.chain(source, anchor, None, None, states.shape[1], 1)
    return draft.tokens[:, 1:]

  drafted = jax.lax.map(one, (jnp.moveaxis(hidden, 1, 0), tokens.T))
  return anchors, jnp.moveaxis(drafted, 0, 1)


def loss(
  drafter: Any, batch: base.DraftBatch
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The on-policy term, on the proposals that `batch.judged` holds."""
  judged, config = batch.judged, drafter.loss_config
  anchors = anchors_lib.Anchors(judged.index, judged.keep)
  hidden = drafter.train_hidden(batch, anchors)
  tokens = anchors_lib.gather(batch.tokens, anchors.index)
  before = jnp.concatenate([tokens[..., None], judged.tokens[..., :-1]], -1)
  states, head = drafter.teacher_forced(hidden, before)
  columns, _ = vocab.to_draft(judged.tokens, drafter.token_ids())
  counts = jnp.broadcast_to(judged.keep[..., None], judged.tokens.shape)
  return on_policy.loss(
    config.on_policy_streams,
    states,
    head,
    columns,
    counts,
    judged.hidden[:, :, : hidden.shape[2]],
    drafter.head[...],
  )
