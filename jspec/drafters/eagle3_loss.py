# SPDX-License-Identifier: MIT
"""The loss of test-time training: which rows, which labels, which teacher.

Row i of a sequence has token i's feature and is fed token i + 1; its step s (0,
1, ..) is fed token i + 1 + s and predicts token i + 2 + s. Decoding starts a
chain of drafts there when token a = i + 1 is the anchor, so rows are drawn as
anchors and step s has the label of depth s + 1:

  tokens    p p p a a a .          p prompt, a answer, . padding
  token     0 1 2 3 4 5
  row 1     fed 2 3 4: labels 3 4 5        anchor 2, the last prompt token
  row 3     fed 4 5 -: labels 5 - -        the run of labels ends

A label is a token the target wrote, in the row's own document, behind nothing
but labels: the mask belongs to the token that is predicted, not to the row.

  loss = sum_s decay^s mean_rows( kl KL(p || q) + tv TV + lk_hybrid LK + ce CE )

with p the target's law of that token on the draft vocabulary (the state of the
token before, through the target's head) and the mean over rows that have the
label and whose most probable token the drafter can draft. KL has the gradient
of the soft cross-entropy of arXiv 2503.01840 and is 0 where q = p.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import errors
from jspec.drafters import anchors as anchors_lib
from jspec.drafters import base, distill, losses, parts, vocab
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import spread
from jspec.typing import Array, Bool, Float, Int, Key

TERMS = ('kl', 'tv', 'lk_hybrid', 'ce')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """How rows are drawn and steps weighted.

  Attributes:
    ttt_length: steps a row is run for; 1 trains on true features alone.
    step_decay: weight of a step over that of the step before.
    num_anchors: rows drawn from every sequence; 0 takes all of them.
    chunk: rows of a sequence whose logits are held at once, all steps of each.
    kl: weight of KL(p || q).
    tv: of the total variation 1/2 sum |p - q|.
    lk_hybrid: of LK's hybrid, l KL + (1 - l) TV with l = exp(-lk_eta (1 - TV))
      held fixed (arXiv 2602.23881).
    lk_eta: see there.
    ce: of the cross-entropy to the token that was written.
  """

  ttt_length: int = 7
  step_decay: float = 0.8
  num_anchors: int = 0
  chunk: int = 16
  kl: float = 1.0
  tv: float = 0.0
  lk_hybrid: float = 0.0
  lk_eta: float = 3.0
  ce: float = 0.0

  def __post_init__(self):
    limits = (('ttt_length', 1), ('num_anchors', 0), ('chunk', 1))
    for name, least in limits:
      value = getattr(self, name)
      if value < least:
        raise errors.UserError(f'{name}={value}: expected {least} or more')
    if not 0 < self.step_decay <= 1:
      raise errors.UserError(
        f'step_decay={self.step_decay}: expected above 0 and at most 1'
      )
    weights = {name: getattr(self, name) for name in TERMS}
    if min(weights.values()) < 0 or not any(weights.values()):
      raise errors.UserError(
        f'{weights}: no weight below 0 and at least one above'
      )
    if self.lk_eta < 0:
      raise errors.UserError(f'lk_eta={self.lk_eta}: expected 0 or more')

  @property
  def weights(self) -> dict[str, float]:
    """Of the terms that take part."""
    found = {name: getattr(self, name) for name in TERMS}
    return {name: weight for name, weight in found.items() if weight}

  @property
  def needs_teacher(self) -> bool:
    """Whether a term compares with the target's law."""
    return set(self.weights) != {'ce'}

  @property
  def computed(self) -> tuple[str, ...]:
    """What `linear_xent` has to give."""
    names = set(self.weights)
    if 'lk_hybrid' in names:
      names = names - {'lk_hybrid'} | {'kl', 'tv'}
    return tuple(sorted(names))


def anchors(
  batch: base.DraftBatch, config: LossConfig, key: Key[Array, '']
) -> anchors_lib.Anchors:
  """The anchors of the rows to train, each with a row before it."""
  follows = batch.segments[:, 1:] == batch.segments[:, :-1]
  # Token t + 2 can be a label if t + 1, the anchor, has a row of its document
  # before it.
  has_row = jnp.pad(follows[:, :-1], ((0, 0), (2, 0)))
  is_label = batch.is_answer & has_row
  if config.num_anchors:
    return anchors_lib.sample(is_label, batch.segments, config.num_anchors, key)
  keep = anchors_lib.candidates(is_label, batch.segments)
  index = jnp.arange(keep.shape[1], dtype=jnp.int32)
  index = jnp.broadcast_to(index, keep.shape)
  return anchors_lib.Anchors(index, keep, is_every=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Labels:
  """What the steps of every row are to predict.

  Attributes:
    tokens: the labels, ids of the target's vocabulary.
    exists: whether there is one, a contiguous run from step 0.
  """

  tokens: Int[Array, 'B A G']
  exists: Bool[Array, 'B A G']


def labels(
  batch: base.DraftBatch, at: anchors_lib.Anchors, ttt_length: int
) -> Labels:
  """Labels of steps 0 to `ttt_length` - 1 of the rows before the anchors."""
  index, exists = anchors_lib.label_run(
    at, batch.is_answer, batch.segments, ttt_length
  )
  return Labels(anchors_lib.gather(batch.tokens, index), exists)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Teacher:
  """The target's law of every label.

  Attributes:
    hidden: normed states of the token before each label.
    head: of the target.
  """

  hidden: Float[Array, 'B A G D']
  head: Float[Array, 'D V']


def loss(
  config: LossConfig,
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D Vd'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  wanted: Labels,
  teacher: Teacher | None,
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss of all steps and its metrics.

  Args:
    config: weights of steps and terms.
    hidden: what the head sees at step s of each row.
    head: the drafter's.
    draft_token_ids: of a reduced vocabulary.
    wanted: labels of the steps.
    teacher: None where no term needs it.
  """
  num_steps = hidden.shape[2]
  row_chunk = config.chunk * num_steps
  columns, inside = vocab.to_draft(wanted.tokens, draft_token_ids)
  mask, of_teacher = wanted.exists, {}
  if teacher is not None:
    states = spread.flat(teacher.hidden)
    of_teacher = dict(
      teacher_hidden=states,
      teacher_head=teacher.head,
      teacher_columns=draft_token_ids,
    )
    if draft_token_ids is not None:
      best = linear_xent.linear_argmax(
        states, teacher.head, row_chunk=row_chunk
      )
      can_draft = vocab.to_draft(best, draft_token_ids)[1]
      mask &= can_draft.reshape(mask.shape)
  out = linear_xent.linear_xent(
    spread.flat(hidden),
    head,
    losses=config.computed,
    labels=spread.flat(columns),
    row_chunk=row_chunk,
    **of_teacher,
  )
  out = {name: x.reshape(mask.shape) for name, x in out.items()}
  if config.lk_hybrid:
    out['lk_hybrid'] = distill.lk_hybrid(out['kl'], out['tv'], config.lk_eta)
  decay = config.step_decay ** jnp.arange(num_steps, dtype=jnp.float32)
  total, metrics = jnp.zeros(()), {}
  for name, weight in config.weights.items():
    # A label that cannot be drafted has no cross-entropy.
    counts = mask & inside if name == 'ce' else mask
    by_step = _mean(out[name], counts)
    total += weight * jnp.sum(decay * by_step)
    num = jnp.sum(counts, axis=(0, 1)).astype(jnp.float32)
    metrics |= parts.metrics({name: (weight * decay * by_step, num)})
    metrics[name] = by_step
  metrics |= losses.acceptance(out['is_hit'] & inside, wanted.exists)
  metrics['num_rows'] = jnp.sum(mask, axis=(0, 1))
  metrics['num_out_of_vocabulary'] = jnp.sum(wanted.exists & ~inside)
  return total, {'loss': total, **metrics}


def _mean(values, mask):
  """Over the rows, for every step; 0 (with zero gradient) over none."""
  total = jnp.sum(jnp.where(mask, values, 0.0), axis=(0, 1))
  return total / jnp.maximum(jnp.sum(mask, axis=(0, 1)), 1)
