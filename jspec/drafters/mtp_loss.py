# SPDX-License-Identifier: MIT
"""The loss of test-time training with a frozen head (AngelSpec's MTP recipe).

Row i of a sequence simulates a round of G steps; with q its law at a step, p
the target's law of the same token and alpha = 1 - TV(p, q):

  ce      -log q(label)       label: the target's argmax, or the data's token
  kl      sum_v p (log p - log q)
  tv      1/2 sum_v |p - q|
  lk      lambda kl + (1 - lambda) tv,     lambda = exp(-eta alpha) held fixed
  step loss = sum w_s c_s (ce + kl + tv + lk, each by its weight) / sum w_s c_s
              w_s = step_decay ** s,  c_s: the row's label at step s counts

kl, tv and lk may look at the teacher's `top_k` tokens alone, both laws
renormalised over them; kl also without renormalising. Over rows whose G labels
all count, two terms see the whole chain:

  e2e_direct    1 - 1/G sum_j prod_{i<=j} alpha_i
  e2e_weighted  sum_m W_m l_m,   W_m = 1/G prod_{i<m} alpha_i S_m held fixed,
                S_G = 1, S_m = 1 + alpha_{m+1} S_{m+1}: minus the derivative of
                the expected share of accepted drafts by alpha_m

Every term is added with its own weight; a weight whose term cannot act is
refused (the reference drops single-step losses when its KL factor is 0).
"""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp

from jspec import errors
from jspec.drafters import anchors, base, distill, losses, parts, vocab
from jspec.kernels.linear_xent import api as linear_xent
from jspec.nn import spread
from jspec.typing import Array, Bool, Float, Int, Key

STEP_TERMS = ('ce', 'kl', 'tv', 'lk')
CHAIN_TERMS = ('e2e_direct', 'e2e_weighted')


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig:
  """How rounds are simulated and what is minimised.

  Attributes:
    ttt_length: G, steps simulated from every row.
    num_anchors: rows drawn from every sequence; 0 takes all of them.
    on_policy: later steps embed the drafter's own argmax, not the data.
    step_decay: weight of a step by the one before; 1 is uniform.
    ce: weight of the cross-entropy.
    ground_truth: whether its labels are the data's tokens.
    kl: weight, and so on.
    tv: weight.
    lk: weight.
    lk_eta: eta.
    top_k: teacher's tokens that kl, tv, lk and the chain terms see; 0 for all.
    renormalise: over these tokens; without it, only kl is defined.
    e2e_direct: weight.
    e2e_weighted: weight.
    e2e_term: the l of `e2e_weighted`: 'tv', 'kl' or 'lk'.
    chunk: rows of a sequence whose logits are held at once.
  """

  ttt_length: int = 4
  num_anchors: int = 0
  on_policy: bool = True
  step_decay: float = 0.8
  ce: float = 0.1
  ground_truth: bool = False
  kl: float = 0.0
  tv: float = 0.0
  lk: float = 1.0
  lk_eta: float = 3.0
  top_k: int = 0
  renormalise: bool = True
  e2e_direct: float = 0.0
  e2e_weighted: float = 0.0
  e2e_term: str = 'tv'
  chunk: int = 128

  def __post_init__(self):
    for name in ('ttt_length', 'chunk'):
      _need(getattr(self, name) >= 1, f'{name}={getattr(self, name)}', '1 up')
    counts = ('lk_eta', 'top_k', 'num_anchors')
    for name in (*STEP_TERMS, *CHAIN_TERMS, *counts):
      _need(getattr(self, name) >= 0, f'{name}={getattr(self, name)}', '0 up')
    _need(
      0 < self.step_decay <= 1, f'step_decay={self.step_decay}', '0 < d <= 1'
    )
    terms = STEP_TERMS + CHAIN_TERMS
    _need(
      any(getattr(self, name) for name in terms),
      'every weight is 0',
      f'one of {", ".join(terms)} above 0',
    )
    _need(
      self.e2e_term in ('tv', 'kl', 'lk'),
      f'e2e_term={self.e2e_term!r}',
      'tv, kl or lk',
    )
    if self.ground_truth:
      _need(self.ce > 0, 'ground_truth=True with ce=0', 'a weight of ce')
    if self.top_k:
      _need(
        bool(self.compared),
        f'top_k={self.top_k} with no term that compares laws',
        'a weight of kl, tv, lk or a chain term',
      )
    if not self.renormalise:
      _need(self.top_k > 0, 'renormalise=False with top_k=0', 'a top_k')
      used = [name for name in self.compared if name != 'kl']
      _need(
        not used,
        f'renormalise=False with {", ".join(used)}',
        'kl alone (the others need laws that sum to 1)',
      )

  @property
  def compared(self) -> tuple[str, ...]:
    """Terms that compare the two laws, by name in `STEP_TERMS`."""
    wanted = {name for name in STEP_TERMS[1:] if getattr(self, name)}
    if self.e2e_direct or self.e2e_weighted:
      wanted.add('tv')
    if self.e2e_weighted:
      wanted.add(self.e2e_term)
    return tuple(name for name in STEP_TERMS if name in wanted)

  @property
  def needs_teacher(self) -> bool:
    """Whether anything needs the target's law."""
    return bool(self.compared) or self.ce_of_teacher

  @property
  def ce_of_teacher(self) -> bool:
    """Whether the labels of the cross-entropy are the target's argmax."""
    return self.ce > 0 and not self.ground_truth


def following(
  values: Array, segments: Int[Array, 'B S'], distance: int
) -> Array:
  """`values` [B, S, ...] of the token `distance` behind each, in its document.

  Zero (False) where the document has no such token; padding has none.
  """
  shifted = anchors.moved(values, distance)
  same = (segments > 0) & (anchors.moved(segments, distance) == segments)
  same = same.reshape(*same.shape, *(1,) * (values.ndim - 2))
  return jnp.where(same, shifted, jnp.zeros_like(shifted))


def window(
  values: Array, segments: Int[Array, 'B S'], first: int, num_steps: int
) -> Array:
  """`following` at distances first, first + 1, ... stacked on axis 2."""
  shifted = [
    following(values, segments, first + step) for step in range(num_steps)
  ]
  return jnp.stack(shifted, axis=2)


class Labels(NamedTuple):
  """What the steps of every row are to predict.

  Attributes:
    columns: of the draft head.
    exists: the contiguous run of answer tokens from two behind the row on.
    inside: whether the token has a column.
  """

  columns: Int[Array, 'B S G']
  exists: Bool[Array, 'B S G']
  inside: Bool[Array, 'B S G']


def labels(
  batch: base.DraftBatch,
  draft_token_ids: Int[Array, 'Vd'] | None,
  num_steps: int,
) -> Labels:
  """The data's own tokens as labels."""
  tokens, answers = (
    window(x, batch.segments, 2, num_steps)
    for x in (batch.tokens, batch.is_answer)
  )
  columns, inside = vocab.to_draft(tokens, draft_token_ids)
  return Labels(columns, jnp.cumprod(answers, axis=-1).astype(bool), inside)


def sample(
  labels: Labels, num_anchors: int, key: Key[Array, '']
) -> tuple[Int[Array, 'B A'], Labels]:
  """Rows drawn from those with a label, ascending, and their labels.

  Where there are too few, row 0 stands in and has no label.
  """
  drawn = anchors.draw(labels.exists[..., 0], num_anchors, key)
  found = Labels(*(anchors.gather(x, drawn.index) for x in labels))
  exists = found.exists & drawn.keep[..., None]
  return drawn.index, found._replace(exists=exists)


def compute(
  config: LossConfig,
  hidden: Float[Array, 'B S G D'],
  head: Float[Array, 'D Vd'],
  labels: Int[Array, 'B S G'],
  counts: Bool[Array, 'B S G'],
  teacher_hidden: Float[Array, 'B S G Dt'] | None,
  teacher_head: Float[Array, 'Dt V'] | None,
  teacher_columns: Int[Array, 'Vd'] | None = None,
) -> tuple[Float[Array, ''], dict[str, Array], Bool[Array, 'B S G']]:
  """The loss, every term's mean by step, and which labels are the argmax.

  Args:
    config: the weights.
    hidden: states of every step, after the drafter's final norm.
    head: of the draft vocabulary.
    labels: columns of `head` for 'ce'.
    counts: the slots that count.
    teacher_hidden: normed states whose law each slot is to match.
    teacher_head: the head on them.
    teacher_columns: its column for every column of `head`; None: the same.

  Returns:
    The loss; metrics (terms by name [G], `weight`, the sum the loss is a mean
    over); hits.
  """
  rows, length, num_steps, _ = hidden.shape
  names = _kernel_losses(config)
  flat = spread.flat if config.compared else lambda x: None
  out = linear_xent.linear_xent(
    spread.flat(hidden),
    head,
    losses=names,
    labels=spread.flat(labels),
    teacher_hidden=flat(teacher_hidden),
    teacher_head=teacher_head if config.compared else None,
    teacher_columns=teacher_columns if config.compared else None,
    row_chunk=config.chunk,
    **({'top_k': config.top_k} if config.compared and config.top_k else {}),
  )
  out = {name: x.reshape(rows, length, num_steps) for name, x in out.items()}
  terms = _terms(config, out)
  decay = config.step_decay ** jnp.arange(num_steps, dtype=jnp.float32)
  weights = counts * decay
  weight = jnp.sum(weights)
  added = {
    name: (
      getattr(config, name) * losses.weighted_mean(terms[name], weights),
      weight,
    )
    for name in STEP_TERMS
    if getattr(config, name)
  }
  metrics = {
    name: jnp.sum(x * counts, axis=(0, 1))
    / jnp.maximum(jnp.sum(counts, axis=(0, 1)), 1)
    for name, x in terms.items()
  }
  whole = jnp.all(counts, axis=-1, keepdims=True)
  num_chains = jnp.sum(whole).astype(jnp.float32)
  whole = jnp.broadcast_to(whole, counts.shape)
  if config.e2e_direct:
    metrics['e2e_direct'] = distill.end_to_end(terms['tv'], whole)
    value = config.e2e_direct * metrics['e2e_direct']
    added['e2e_direct'] = (value, num_chains)
  if config.e2e_weighted:
    metrics['e2e_weighted'] = distill.end_to_end_surrogate(
      terms[config.e2e_term], terms['tv'], whole
    )
    value = config.e2e_weighted * metrics['e2e_weighted']
    added['e2e_weighted'] = (value, num_chains)
  loss = sum(value for value, _ in added.values())
  metrics |= {'weight': weight, **parts.metrics(added)}
  return loss, metrics, out['is_hit']


def _kernel_losses(config):
  """Names in `linear_xent`."""
  names = ['ce'] if config.ce else []
  of_kl, of_tv = 'kl', 'tv'
  if config.top_k:
    of_kl = 'kl_topk_a' if config.renormalise else 'kl_topk_b'
    of_tv = 'tv_topk'
  if {'kl', 'lk'} & set(config.compared):
    names.append(of_kl)
  if {'tv', 'lk'} & set(config.compared):
    names.append(of_tv)
  return tuple(names)


def _terms(config, out):
  """The terms in use by name in `STEP_TERMS`, from the kernel's losses."""
  found = {name.split('_')[0]: x for name, x in out.items()}
  terms = {'ce': out['ce']} if config.ce else {}
  for name in config.compared:
    if name == 'lk':
      terms['lk'] = distill.lk_hybrid(found['kl'], found['tv'], config.lk_eta)
    else:
      terms[name] = found[name]
  return terms


def _need(holds, what, expected):
  if not holds:
    raise errors.UserError(f'{what}: expected {expected}')
