# SPDX-License-Identifier: MIT
"""The parts of a training step as programs, and the scratch of its loss."""

import dataclasses
from typing import Any

import jax

from jspec.bench import train_setup
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import block_drafter, block_loss
from jspec.train import prepare, settings, step


def programs(
  config: settings.TrainConfig, setup: train_setup.Setup, batch: dict[str, Any]
) -> dict[str, tuple[Any, ...]]:
  """The parts of a step as functions with their arguments.

  Those of the drafter are given what the target says. A `BlockDrafter` also
  tells the loss apart, from the states of its slots on.
  """
  merge, frozen = setup.parts.merge, setup.parts.frozen
  params, key = setup.state.params, jax.random.key(config.seed)

  def target_pass(target, params, frozen, batch, key):
    draft_batch = step.as_draft_batch(batch, *setup.taps_of(target, batch))
    drafter = merge(params, frozen)
    return step.judged(setup.judge, drafter, target, draft_batch, key)

  def forward(params, frozen, seen, key):
    return merge(params, frozen).loss(seen, key)[0]

  def loss(hidden, params, frozen, seen, anchors):
    return block_loss.loss(merge(params, frozen), seen, anchors, hidden)[0]

  def hidden_of(params, frozen, seen, anchors):
    return merge(params, frozen).train_hidden(seen, anchors)

  both = jax.value_and_grad(forward)
  seen = jax.jit(target_pass)(setup.target, params, frozen, batch, key)
  value, grads = jax.jit(both)(params, frozen, seen, key)
  found = {
    'target': (target_pass, setup.target, params, frozen, batch, key),
    'forward': (forward, params, frozen, seen, key),
    'forward_backward': (both, params, frozen, seen, key),
  }
  if isinstance(setup.drafter, block_drafter.BlockDrafter):
    num_anchors = setup.drafter.loss_config.num_anchors
    anchors = anchors_lib.sample(
      seen.is_answer, seen.segments, num_anchors, key
    )
    hidden = jax.jit(hidden_of)(params, frozen, seen, anchors)
    of_loss = jax.value_and_grad(loss)
    found['loss'] = (of_loss, hidden, params, frozen, seen, anchors)

  def update(state, value, grads):
    return step.update(
      setup.optimizer, state, value, grads, config.optim.ema_decay
    )

  return {**found, 'optimizer': (update, setup.state, value, grads)}


def loss_memory(
  config: settings.TrainConfig,
  loaded: Any,
  batch: dict[str, Any],
  setup: train_setup.Setup,
) -> list[dict[str, Any]]:
  """Scratch of the drafter and its loss, both ways, at two vocabularies.

  Returns:
    For a quarter of the target's vocabulary and for all of it: `temp_bytes` of
    the compiled program, and for comparison `logits_bytes` that the logits of
    all slots of a block drafter would take in float32 (None for others).
  """
  entries = []
  for size in (loaded.model.vocab_size // 4, None):
    changed = dataclasses.replace(
      config,
      drafter=dataclasses.replace(
        config.drafter, draft_vocab_size=size, init=''
      ),
    )
    drafter = prepare.drafter(changed, loaded, setup.found)
    parts = step.split(drafter)

    def loss_of(params, frozen, draft_batch, key, merge=parts.merge):
      return merge(params, frozen).loss(draft_batch, key)[0]

    def seen(target, params, frozen, batch, key, merge=parts.merge):
      return step.judged(
        setup.judge,
        merge(params, frozen),
        target,
        step.as_draft_batch(batch, *setup.taps_of(target, batch)),
        key,
      )

    key = jax.random.key(0)
    described = jax.eval_shape(
      seen, setup.target, parts.params, parts.frozen, batch, key
    )
    compiled = (
      jax.jit(jax.value_and_grad(loss_of))
      .lower(parts.params, parts.frozen, described, key)
      .compile()
    )
    num_columns = size or loaded.model.vocab_size
    num_bytes = None
    if isinstance(drafter, block_drafter.BlockDrafter):
      num_slots = drafter.loss_config.num_anchors * drafter.num_draft_tokens
      num_bytes = 4 * config.data.num_rows * num_slots * num_columns
    entries.append(
      {
        'vocab_size': num_columns,
        'temp_bytes': compiled.memory_analysis().temp_size_in_bytes,
        'logits_bytes': num_bytes,
      }
    )
  return entries
