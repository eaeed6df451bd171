# SPDX-License-Identifier: MIT
"""How SpecBlock trains: blocks behind blocks, each slot while it would be used.

Row i holds the features of token i and is fed token i + 1; slot k of a block
that was started `offset` tokens later drafts token i + 2 + offset + k:

  block 1   condition: the taps of token i             fed token i + 1
  block m   condition: slot M - 1 of the block before  fed token i + 1 + offset

with offset the sum of the M so far, each drawn from 1..K for the whole batch
(decoding starts a block wherever it doubts). Tokens fed are those of the text.

  loss = sum over blocks ( sum_k decay^k mean_i(alive_ik CE_ik) + rank loss )

Slot k is alive where all earlier slots of its block are right: only there will
it be reached. That mask has no gradient and is not handed to the next block,
which starts where this one went wrong. CE against the target's law is taken
less that law's entropy (the same gradient): it is 0 for a perfect drafter. The
law is the target's over the draft vocabulary; where its most probable token is
not in it, the slot and those behind it do not train.

Source: SpecBlock, arXiv 2605.07243, and its published training code.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec.drafters import anchors as anchors_lib
from jspec.drafters import (
  base,
  borrowed,
  losses,
  rank_head,
  specblock_attention,
  specblock_layer,
  teacher,
  top_columns,
  vocab,
)
from jspec.kernels.linear_xent import api as linear_xent
from jspec.typing import Array, Bool, Float, Int, Key


class Draws(NamedTuple):
  """What is drawn for a batch.

  Attributes:
    rows: whose slots train.
    counts: M of every transition to a next block.
  """

  rows: anchors_lib.Anchors
  counts: Int[Array, 'transitions']


class Targets(NamedTuple):
  """What is right behind every token t.

  Attributes:
    columns: of the head; 0 where the right token has none.
    inside: whether it has.
    law: states the target's head makes its law of; None for hard labels.
    text: columns of the text's own next token.
    is_text_inside: whether it has one.
  """

  columns: Int[Array, 'B S']
  inside: Bool[Array, 'B S']
  law: Float[Array, 'B S Dt'] | None
  text: Int[Array, 'B S']
  is_text_inside: Bool[Array, 'B S']


def draw(drafter, batch: base.DraftBatch, key: Key[Array, '']) -> Draws:
  """Draws rows with a label, and M of every transition."""
  config = drafter.loss_config
  key_rows, key_counts = jax.random.split(key)
  counts = jax.random.randint(
    key_counts, (config.num_blocks - 1,), 1, drafter.config.block_size + 1
  )
  shape = batch.tokens.shape
  if not config.num_anchors:
    every = jnp.broadcast_to(jnp.arange(shape[1], dtype=jnp.int32), shape)
    return Draws(anchors_lib.Anchors(every, jnp.ones(shape, bool)), counts)
  # The first label of row i is token i + 2: one behind that of an anchor.
  is_label = anchors_lib.candidates(batch.is_answer, batch.segments)
  rows = anchors_lib.sample(
    is_label, batch.segments, config.num_anchors, key_rows
  )
  return Draws(rows, counts)


def labels(
  batch: base.DraftBatch,
  rows: anchors_lib.Anchors,
  offset: Int[Array, ''] | int,
  num_slots: int,
) -> tuple[Int[Array, 'B A slots'], Bool[Array, 'B A slots']]:
  """Token index of every slot's label, clipped, and whether it is one.

  All tokens from the row's first label, i + 2, to the slot's must be labels of
  the row's document.
  """
  length = batch.tokens.shape[1]
  index = rows.index[..., None] + 2 + offset + jnp.arange(num_slots)
  exists = rows.keep[..., None] & (index < length)
  index = jnp.minimum(index, length - 1)
  document = anchors_lib.gather(batch.segments, rows.index)
  here = anchors_lib.gather(batch.segments, index) == document[..., None]
  others = jnp.cumsum(~batch.is_answer, axis=1)
  before = jnp.minimum(rows.index + 1, length - 1)
  before = anchors_lib.gather(others, before)[..., None]
  is_run = anchors_lib.gather(others, index) == before
  exists &= here & is_run & (document > 0)[..., None]
  return index, exists


def targets(drafter, batch: base.DraftBatch) -> Targets:
  """What is right, by the teacher or by the text."""
  ids = drafter.token_ids()
  text, is_inside = vocab.to_draft(jnp.roll(batch.tokens, -1, axis=1), ids)
  if drafter.loss_config.labels == 'text':
    return Targets(text, is_inside, None, text, is_inside)
  states = teacher.states(
    batch.last,
    borrowed.value(drafter.target_norm),
    drafter.target_norm_eps,
    'SpecBlock',
  )
  row_chunk = drafter.loss_config.chunk * drafter.config.block_size
  best = linear_xent.linear_argmax(
    states, drafter.whole_head(), row_chunk=row_chunk
  )
  columns, inside = vocab.to_draft(best, ids)
  return Targets(columns, inside, states, text, is_inside)


def states(
  drafter, batch: base.DraftBatch, draws: Draws
) -> list[Float[Array, 'B A slots D']]:
  """The chosen rows' states before the final norm, block by block."""
  index = draws.rows.index
  first, rows = specblock_layer.run(
    drafter.layers,
    drafter.config,
    drafter.fuse(drafter.condition(batch.taps), _later(batch.tokens, 1)),
    batch.positions,
    specblock_attention.train_first(batch.segments),
  )
  found = [anchors_lib.gather(first, index)]
  earlier = [
    [tuple(anchors_lib.gather(x, index) for x in layer) for layer in rows]
  ]
  positions = anchors_lib.gather(batch.positions, index)
  offset = jnp.int32(0)
  for block in range(1, drafter.loss_config.num_blocks):
    counts = [draws.counts[i] for i in range(block)]
    offset = offset + counts[-1]
    condition = jnp.take(found[-1], counts[-1] - 1, axis=2)
    fed = anchors_lib.gather(_later(batch.tokens, 1 + offset), index)
    hidden, made = specblock_layer.run(
      drafter.layers,
      drafter.config,
      drafter.fuse(condition, fed),
      positions,
      specblock_attention.train_later(
        rows,
        earlier,
        counts,
        anchors_lib.rows(draws.rows),
        batch.segments,
        cross_rows=drafter.loss_config.cross_rows,
      ),
    )
    found.append(hidden)
    earlier.append(made)
  return found


def loss_at(
  drafter, batch: base.DraftBatch, draws: Draws
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss on given rows and transitions, and metrics.

  `tokens_per_round` and the accuracies are those of the first block as a chain
  against the text; `draft_loss` [blocks] and `rank_loss` are parts of the loss.
  """
  right = targets(drafter, batch)
  total, weight = jnp.float32(0), jnp.float32(0)
  metrics = {'draft_loss': [], 'rank_loss': []}
  offset = jnp.int32(0)
  for block, hidden in enumerate(states(drafter, batch, draws)):
    if block:
      offset = offset + draws.counts[block - 1]
    index, exists = labels(batch, draws.rows, offset, hidden.shape[2])
    parts, of_block = _block(drafter, hidden, right, index, exists)
    total += parts['draft_loss']
    total += drafter.loss_config.rank_weight * parts['rank_loss']
    weight += parts['weight']
    for name in metrics:
      metrics[name].append(parts[name])
    if not block:
      first = of_block
  metrics = {name: jnp.stack(of) for name, of in metrics.items()}
  return total, {'loss': total, 'weight': weight, **metrics, **first}


def slot_losses(
  per_slot: Float[Array, 'B A slots'],
  is_right: Bool[Array, 'B A slots'],
  counts: Bool[Array, 'B A slots'],
  decay: float,
) -> tuple[Float[Array, ''], Bool[Array, 'B A slots']]:
  """sum_k decay^k mean over the rows where slot k is alive; that mask.

  Args:
    per_slot: a loss of every slot.
    is_right: whether its best token is the right one.
    counts: whether it has a label in the draft vocabulary.
    decay: a slot's weight over that of the one before.
  """
  passed = jnp.cumprod(is_right & counts, axis=-1)[..., :-1].astype(bool)
  passed = jnp.pad(passed, ((0, 0), (0, 0), (1, 0)), constant_values=True)
  alive = counts & passed
  num = jnp.maximum(jnp.sum(alive, axis=(0, 1)), 1)
  means = jnp.sum(jnp.where(alive, per_slot, 0), axis=(0, 1)) / num
  return jnp.sum(means * decay ** jnp.arange(means.shape[0])), alive


def _block(drafter, hidden, right, index, exists):
  """Parts of a block's loss, and its metrics."""
  config = drafter.loss_config
  shape = index.shape
  normed = drafter.normed(hidden)
  flat = normed.reshape(shape[0], -1, normed.shape[-1])
  row_chunk = config.chunk * shape[2]
  values, ranked = (
    x.reshape(*shape, -1)
    for x in top_columns.top(
      flat, drafter.head[...], rank_head.NUM_LOGITS, row_chunk
    )
  )

  # What is right behind the token before the label.
  def at_slots(x):
    return anchors_lib.gather(x, index - 1)

  columns, inside = at_slots(right.columns), at_slots(right.inside)
  per_slot = _cross_entropy(drafter, flat, columns, right.law, index, row_chunk)
  counts = exists & inside
  is_right = ranked[..., 0] == columns
  draft_loss, alive = slot_losses(
    per_slot.reshape(shape), is_right, counts, config.slot_decay
  )
  rank_logits = drafter.rank_scores(normed, values)
  rank_loss, metrics = rank_head.loss(
    rank_logits, rank_head.labels(ranked, columns), counts
  )
  is_hit = (ranked[..., 0] == at_slots(right.text)) & at_slots(
    right.is_text_inside
  )
  metrics |= losses.acceptance(is_hit, exists)
  metrics['num_out_of_vocabulary'] = jnp.sum(exists & ~inside)
  weight = jnp.sum(alive).astype(jnp.float32)
  parts = dict(draft_loss=draft_loss, rank_loss=rank_loss, weight=weight)
  return parts, metrics


def _cross_entropy(drafter, flat, columns, law, index, row_chunk):
  """Loss of every slot [B, A slots]."""
  rows = flat.shape[0]
  if law is None:
    return linear_xent.linear_xent(
      flat,
      drafter.head[...],
      losses=('ce',),
      labels=columns.reshape(rows, -1),
      row_chunk=row_chunk,
    )['ce']
  before = index.reshape(rows, -1) - 1
  return linear_xent.linear_xent(
    flat,
    drafter.head[...],
    losses=('kl',),
    teacher_hidden=anchors_lib.gather(law, before),
    teacher_head=drafter.teacher_head[...],
    row_chunk=row_chunk,
  )['kl']


def _later(tokens, offset):
  """The token `offset` behind every token; at the end the last one."""
  index = jnp.arange(tokens.shape[1]) + offset
  return jnp.take(tokens, jnp.minimum(index, tokens.shape[1] - 1), axis=1)
