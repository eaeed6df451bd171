# SPDX-License-Identifier: MIT
"""The loss of a block drafter: any mix of terms, each with its own weight.

  loss = sum_term weight_term * mean(term)

  slot terms    ce   kl   l1 = 2 TV   kl_topk_a   kl_topk_b   lk_alpha = -log
                sum min(p, q)   lk_hybrid   confidence;   mean = sum w l / sum w
  block terms   e2e_tv;   mean over blocks, whatever the slot weights

Terms add up. AngelSpec mixes distillation and cross-entropy as d * distill +
(1 - d) * ce, in which ce (and l1) vanish at d = 1 and KL vanishes beside LK;
here a term with a weight is always in the sum, or is refused.

A slot counts if all labels before it in its block exist and are in the draft
vocabulary: behind a gap nothing can be accepted, so nothing is to be learned.
All comes from per-slot rows of `kernels/linear_xent`, which holds the logits of
`chunk` anchors at a time; so no head and no chunk size changes the loss. A head
that adds a bias of low rank (Markov) is a wider hidden and a taller head.
"""

import dataclasses
import math

import jax.numpy as jnp

from jspec import errors
from jspec.drafters import distill, losses, parts
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import spread
from jspec.typing import Array, Bool, Float, Int

# Term -> the rows it is made of, as `linear_xent` calls them.
TERMS = {
  'ce': ('ce',),
  'l1': ('tv',),
  'kl': ('kl',),
  'kl_topk_a': ('kl_topk_a',),
  'kl_topk_b': ('kl_topk_b',),
  'lk_alpha': ('lk',),
  'lk_hybrid': ('kl', 'tv'),
  'e2e_tv': ('tv',),
  'confidence': ('tv',),
}
WEIGHTS = ('decay', 'dpace', 'uniform')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mix:
  """Weights of the terms (0 turns one off) and how slots are weighed.

  Attributes:
    ce: cross-entropy against the label.
    l1: sum |p - q|, twice the total variation.
    kl: KL(p || q) over the whole (draft) vocabulary.
    kl_topk_a: KL over the teacher's top columns, both laws renormalised.
    kl_topk_b: KL of the whole laws, summed over these columns only.
    kl_top_k: how many columns these two look at.
    lk_alpha: -log sum min(p, q).
    lk_hybrid: KL and TV, mixed by the acceptance (arXiv 2602.23881).
    lk_eta: how fast TV takes over.
    e2e_tv: share of a block that is not accepted in expectation.
    confidence: BCE of the confidence head against 1 - TV.
    weights: of the slots: 'decay' (exp(-(k - 1) / gamma)), 'dpace'
      (arXiv 2605.18810) or 'uniform'.
    decay_gamma: gamma of the decay; 0 for none.
    dpace_alpha: smoothing of D-PACE, 0..1.
    chunk: anchors of a row whose logits exist at once.
    vocab_chunk: columns of the head whose logits do; 0 for all. With some, the
      scratch of the loss does not grow with the vocabulary; terms that compare
      whole laws then take another product with both heads.
  """

  ce: float = 1.0
  l1: float = 0.0
  kl: float = 0.0
  kl_topk_a: float = 0.0
  kl_topk_b: float = 0.0
  kl_top_k: int = 10
  lk_alpha: float = 0.0
  lk_hybrid: float = 0.0
  lk_eta: float = 3.0
  e2e_tv: float = 0.0
  confidence: float = 0.0
  weights: str = 'decay'
  decay_gamma: float = 4.0
  dpace_alpha: float = 0.5
  chunk: int = 16
  vocab_chunk: int = 0

  def __post_init__(self):
    for name in (*TERMS, 'lk_eta', 'decay_gamma', 'vocab_chunk'):
      value = getattr(self, name)
      _need(math.isfinite(value) and value >= 0, name, value, 'at least 0')
    for name in ('kl_top_k', 'chunk'):
      _need(getattr(self, name) >= 1, name, getattr(self, name), 'at least 1')
    _need(0 <= self.dpace_alpha <= 1, 'dpace_alpha', self.dpace_alpha, '0..1')
    _need(self.weights in WEIGHTS, 'weights', self.weights, f'one of {WEIGHTS}')
    if not self.active:
      raise errors.UserError(
        f'loss: all weights are 0; set one of {", ".join(TERMS)}'
      )

  @property
  def active(self) -> tuple[str, ...]:
    """Terms with a weight."""
    return tuple(name for name in TERMS if getattr(self, name))

  @property
  def rows(self) -> tuple[str, ...]:
    """What `linear_xent` has to give."""
    wanted = {row for name in self.active for row in TERMS[name]}
    if self.weights == 'dpace':
      wanted.add('ce')
    return tuple(sorted(wanted))

  @property
  def needs_teacher(self) -> bool:
    """Whether a term compares with the target's law."""
    return bool(set(self.rows) & set(linear_xent.OF_TEACHER))


def compute(
  mix: Mix,
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D V'],
  labels: Int[Array, 'B A G'],
  exists: Bool[Array, 'B A G'],
  inside: Bool[Array, 'B A G'] | None = None,
  *,
  teacher_hidden: Float[Array, 'B A G Dt'] | None = None,
  teacher_head: Float[Array, 'Dt Vt'] | None = None,
  teacher_columns: Int[Array, 'V'] | None = None,
  confidence_logits: Float[Array, 'B A G'] | None = None,
  first: Int[Array, 'B A'] | None = None,
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss of all slots of all blocks.

  Args:
    mix: weights.
    hidden: slots after the final norm, the one that predicts depth 1 first.
    head: of the drafter; its gradient costs extra where it is wanted.
    labels: columns of the head.
    exists: whether there is a label.
    inside: whether it is in the draft vocabulary; None for always.
    teacher_hidden: the target's normed states one token before each label.
    teacher_head: its head; the same columns as `head`, or see next.
    teacher_columns: the teacher's column of each column of `head`.
    confidence_logits: of the confidence head.
    first: slots at the start of each block that hold given tokens: they do not
      count, weights decay from there on, and only blocks without any show in
      `losses.acceptance`. None for none.

  Returns:
    The loss, and metrics: it, every term's mean by its name in `Mix`, 'weight'
    (the sum of slot weights) and 'num_chains' (what the mean of `e2e_tv` is
    over), `parts`, what `losses.acceptance` says, and 'num_out_of_vocabulary'.

  Raises:
    UserError: a term lacks its teacher or its confidence head, or `kl_top_k` is
      more than there are columns.
  """
  if inside is None:
    inside = jnp.ones_like(exists)
  rows = slot_rows(
    mix, hidden, head, labels, teacher_hidden, teacher_head, teacher_columns
  )
  exists = jnp.cumprod(exists, axis=-1).astype(bool)
  counts = jnp.cumprod(exists & inside, axis=-1).astype(bool)
  measured = exists
  if first is not None:
    counts &= jnp.arange(counts.shape[-1]) >= first[..., None]
    measured &= (first == 0)[..., None]
  weights = slot_weights(mix, rows, counts, first)
  loss, terms = total(mix, rows, weights, counts, confidence_logits)
  metrics = losses.acceptance(rows['is_hit'] & inside, measured)
  weight = metrics['weight'] = jnp.sum(weights)
  num_chains = metrics['num_chains'] = jnp.sum(jnp.any(counts, axis=-1))
  metrics |= parts.metrics(
    {
      name: (
        getattr(mix, name) * value,
        num_chains.astype(jnp.float32) if name == 'e2e_tv' else weight,
      )
      for name, value in terms.items()
    }
  )
  metrics['num_out_of_vocabulary'] = jnp.sum(exists & ~inside)
  return loss, {'loss': loss, **terms, **metrics}


def slot_rows(
  mix: Mix,
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D V'],
  labels: Int[Array, 'B A G'],
  teacher_hidden: Float[Array, 'B A G Dt'] | None = None,
  teacher_head: Float[Array, 'Dt Vt'] | None = None,
  teacher_columns: Int[Array, 'V'] | None = None,
) -> dict[str, Array]:
  """`mix.rows` and 'is_hit' of every slot, each [B, A, G]; args as above."""
  teacher = (teacher_hidden, teacher_head, teacher_columns)
  if mix.needs_teacher and (teacher_hidden is None or teacher_head is None):
    raise errors.UserError(
      f'loss terms {", ".join(mix.active)} compare with the target and there is'
      ' no teacher: give its last states and head, or set their weights to 0'
    )
  if not mix.needs_teacher:
    teacher = (None, None, None)
  top_k = None
  if set(mix.rows) & set(linear_xent.OF_TOP):
    top_k = mix.kl_top_k
    if top_k > head.shape[1]:
      raise errors.UserError(
        f'kl_top_k={top_k}: the draft vocabulary has {head.shape[1]} tokens'
      )
  num_slots = hidden.shape[2]

  def flat(x):
    return None if x is None else spread.flat(x)

  out = linear_xent.linear_xent(
    flat(hidden),
    head,
    losses=mix.rows,
    labels=flat(labels),
    teacher_hidden=flat(teacher[0]),
    teacher_head=teacher[1],
    teacher_columns=teacher[2],
    top_k=top_k,
    row_chunk=mix.chunk * num_slots,
    vocab_chunk=mix.vocab_chunk or None,
  )
  return {name: x.reshape(labels.shape) for name, x in out.items()}


def slot_weights(
  mix: Mix,
  rows: dict[str, Array],
  counts: Bool[Array, 'B A G'],
  first: Int[Array, 'B A'] | None = None,
) -> Float[Array, 'B A G']:
  """Weights of the slots, 0 where they do not count."""
  if mix.weights == 'dpace':
    return losses.dpace_weights(rows['ce'], counts, mix.dpace_alpha)
  gamma = mix.decay_gamma if mix.weights == 'decay' else 0.0
  decay = losses.decay_weights(counts.shape[-1], gamma)
  if first is not None:
    behind = jnp.arange(counts.shape[-1]) - first[..., None]
    decay = decay[jnp.maximum(behind, 0)]
  return counts * decay


def total(
  mix: Mix,
  rows: dict[str, Array],
  weights: Float[Array, 'B A G'],
  counts: Bool[Array, 'B A G'],
  confidence_logits: Float[Array, 'B A G'] | None = None,
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The loss and the mean of every term, from rows and any weights."""
  terms = {}
  for name in mix.active:
    if name == 'e2e_tv':
      terms[name] = distill.end_to_end(rows['tv'], counts)
      continue
    if name == 'l1':
      values = 2 * rows['tv']
    elif name == 'lk_alpha':
      values = rows['lk']
    elif name == 'lk_hybrid':
      values = distill.lk_hybrid(rows['kl'], rows['tv'], mix.lk_eta)
    elif name == 'confidence':
      if confidence_logits is None:
        raise errors.UserError(
          f'confidence={mix.confidence}: this drafter has no confidence head;'
          ' give it one or set the weight to 0'
        )
      values = distill.confidence(confidence_logits, rows['tv'])
    else:
      values = rows[name]
    terms[name] = losses.weighted_mean(values, weights)
  loss = sum(getattr(mix, name) * value for name, value in terms.items())
  return loss, terms


def _need(holds, name, value, expected):
  if not holds:
    raise errors.UserError(f'loss {name}={value}: expected {expected}')
