# SPDX-License-Identifier: MIT
"""The loss of a block drafter: its targets, its teacher, its heads.

The slot of depth k has the label anchor + k, is told the token at anchor + k -
1 (if a head wants it), and its teacher is what the target says behind that same
token. What is weighed how is `objective`'s; two terms belong to parts:

  selector      cross-entropy over a slot's K best tokens, where the label is
                one of them, given the true token before (`selector`)
  gate_entropy  entropy of the gate over taps, to make it choose ('gated')

and `on_policy` is about the drafter's own proposals (`block_rollout`).
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  block_config,
  block_rollout,
  borrowed,
  losses,
  objective,
  parts,
  selector,
  teacher,
  vocab,
)
from jspec.drafters import on_policy as on_policy_lib
from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """How blocks are drawn and what is minimised.

  Attributes:
    num_anchors: blocks drawn from every sequence.
    mix: terms and slot weights. The paper of DFlash has a decay_gamma of 4, 5,
      7 for blocks of 8, 10, 16.
    selector: weight of the selector's term.
    detach_selector: its gradient stays out of the backbone.
    detach_confidence: so does that of the confidence head.
    gate_entropy: weight of that term.
    on_policy: weight of on-policy distillation; the target runs in the step.
    on_policy_anchors: blocks the drafter proposes in every sequence for it.
    on_policy_streams: how accepted and rejected proposals are weighed.
  """

  num_anchors: int = 64
  mix: objective.Mix = objective.Mix()
  selector: float = 0.0
  detach_selector: bool = False
  detach_confidence: bool = True
  gate_entropy: float = 0.0
  on_policy: float = 0.0
  on_policy_anchors: int = 16
  on_policy_streams: on_policy_lib.OnPolicy = on_policy_lib.OnPolicy()

  @property
  def needs_teacher(self) -> bool:
    """Whether a term needs the target's last states."""
    return self.mix.needs_teacher

  def check(self, config: block_config.BlockDrafterConfig) -> None:
    """Refuses terms without their part, and parts that nothing trains.

    Raises:
      UserError: which.
    """
    parts = {
      'confidence': (self.mix.confidence, config.has_confidence),
      'selector': (self.selector, config.selector_rank > 0),
      'gate_entropy': (self.gate_entropy, config.fusion == 'gated'),
      'on_policy': (self.on_policy, config.selector_rank == 0),
    }
    for name, (weight, has_part) in parts.items():
      if weight < 0:
        raise errors.UserError(f'loss {name}={weight}: expected at least 0')
      if weight and not has_part:
        raise errors.UserError(
          f'loss {name}={weight}, but {config.method} has no part for it:'
          ' switch the part on, or set the weight to 0'
        )


def loss(
  drafter: Any,
  batch: base.DraftBatch,
  anchors: anchors_lib.Anchors,
  hidden: Float[Array, 'B A G D'],
  first: Int[Array, 'B A'] | None = None,
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss of a `BlockDrafter` and its metrics.

  A label outside the draft vocabulary has no weight and ends its block; it
  counts as a miss in the acceptance metrics, as it would in decoding.

  Args:
    drafter: whose heads and weights these are.
    batch: the sequences.
    anchors: where blocks start.
    hidden: from `drafter.train_hidden`.
    first: slots of each block that do not count, for blocks that were given
      true tokens; None for none.

  Raises:
    UserError: a term needs a teacher and the batch has none.
  """
  config = drafter.loss_config
  num_labels = hidden.shape[2]
  index, exists = anchors_lib.label_run(
    anchors, batch.is_answer, batch.segments, num_labels
  )
  labels, inside = vocab.to_draft(
    anchors_lib.gather(batch.tokens, index), drafter.token_ids()
  )
  # The token before depth k is at depth k - 1.
  behind = anchors.index[..., None] + jnp.arange(num_labels)
  behind = jnp.minimum(behind, batch.tokens.shape[1] - 1)
  before = anchors_lib.gather(batch.tokens, behind)

  states, head = drafter.teacher_forced(hidden, before)
  given = {}
  if config.needs_teacher:
    states_of_target = teacher.states(
      batch.last,
      borrowed.value(drafter.target_norm),
      drafter.target_norm_eps,
      f'the loss of {drafter.config.method}',
    )
    given['teacher_hidden'] = anchors_lib.gather(states_of_target, behind)
    given['teacher_head'] = drafter.head[...]
  if drafter.confidence is not None and config.mix.confidence:
    seen = jax.lax.stop_gradient(hidden) if config.detach_confidence else hidden
    given['confidence_logits'] = drafter.confidence_logits(seen, before)
  total, metrics = objective.compute(
    config.mix, states, head, labels, exists, inside, first=first, **given
  )
  if config.selector:
    total, metrics = _with_selector(
      drafter, hidden, (labels, before), (exists, inside), total, metrics
    )
  if config.gate_entropy:
    weights = drafter.fusion.gate_weights()
    entropy = -jnp.sum(weights * jnp.log(weights + 1e-9))
    total = total + config.gate_entropy * entropy
    part = (config.gate_entropy * entropy, jnp.float32(1))
    metrics |= parts.metrics({'gate_entropy': part})
    metrics['gate_entropy'] = entropy
    metrics['gate_weights'] = weights
  if config.on_policy:
    if batch.judged is None:
      raise errors.UserError(
        f'loss on_policy={config.on_policy} needs the target in the step: train'
        ' with data.mode=online'
      )
    value, more = block_rollout.loss(drafter, batch)
    total, metrics = total + config.on_policy * value, metrics | more
    part = (config.on_policy * value, more['on_policy_weight'])
    metrics |= parts.metrics({'on_policy': part})
  metrics['loss'] = total
  return total, metrics


def _with_selector(drafter, hidden, tokens, masks, total, metrics):
  """Adds the selector's term; acceptance is that of its picks."""
  config, (labels, before), (exists, inside) = (
    drafter.loss_config,
    tokens,
    masks,
  )
  counts = jnp.cumprod(exists & inside, axis=-1).astype(bool)
  seen = jax.lax.stop_gradient(hidden) if config.detach_selector else hidden
  ce, is_hit, has_label = selector.cross_entropy(
    drafter.selector,
    seen,
    drafter.head[...],
    labels,
    before,
    counts,
    config.mix.chunk,
  )
  trained = (counts & has_label).astype(jnp.float32)
  mean = losses.weighted_mean(ce, trained)
  metrics = metrics | losses.acceptance(is_hit & inside, exists)
  part = (config.selector * mean, jnp.sum(trained))
  metrics |= parts.metrics({'selector': part})
  metrics['selector'] = mean
  metrics['selector_recall'] = losses.weighted_mean(
    has_label.astype(jnp.float32), counts.astype(jnp.float32)
  )
  return total + config.selector * mean, metrics
