# SPDX-License-Identifier: MIT
"""`linear_xent`: the LM head and a loss on its logits, in one.

With l = h W the logits of a row, q = softmax(l), and p the teacher's softmax
over the same columns (of its own hidden state and head):

  lse         log sum_v e^(l_v)
  ce          lse - l_label
  kl          sum_v p_v (log p_v - log q_v)
  reverse_kl  sum_v q_v (log q_v - log p_v)
  tv          1/2 sum_v |p_v - q_v|;  1 - tv is what rejection sampling accepts
  lk          -log sum_v min(p_v, q_v)
  kl_topk_a   kl of both laws renormalised over the teacher's `top_k` columns
  kl_topk_b   kl, summed over these columns only (not renormalised)
  tv_topk     tv, renormalised like kl_topk_a

All of them come from one pass over the logits, of which a chunk of rows (times
a chunk of columns) exists at a time. Losses are per row; the caller weights
them. Gradients go to the hidden states and, where it is differentiated, to the
head; the teacher gets none.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jspec.kernels import choose
from jspec.kernels.linear_xent import ref, top, xla

IMPLEMENTATIONS = {
  'reference': ref.linear_xent,
  'xla': xla.linear_xent,
}
OF_TOP = top.NAMES
OF_TEACHER = ('kl', 'lk', 'reverse_kl', 'tv', *OF_TOP)
LOSSES = ('ce', 'lse', *OF_TEACHER)


def linear_xent(
  hidden: Float[Array, '*batch R D'],
  head: Float[Array, 'D V'],
  *,
  losses: Sequence[str] = ('ce',),
  labels: Int[Array, '*batch R'] | None = None,
  teacher_hidden: Float[Array, '*batch R Dt'] | None = None,
  teacher_head: Float[Array, 'Dt Vt'] | None = None,
  teacher_columns: Int[Array, 'V'] | None = None,
  top_k: int | None = None,
  row_chunk: int = 128,
  vocab_chunk: int | None = None,
  implementation: str | None = None,
) -> dict[str, Float[Array, '*batch R'] | Bool[Array, '*batch R']]:
  """Losses of every row, by name, and `is_hit` where there are labels.

  Args:
    hidden: rows after the final norm. Axes before the rows are never looped
      over, so that they may be sharded.
    head: a column for every token.
    losses: names out of `LOSSES`.
    labels: column of each row's label, for 'ce' and `is_hit` (the label wins
      when nothing beats it: an exact tie is a hit).
    teacher_hidden: the teacher's rows, after its final norm.
    teacher_head: the teacher's head.
    teacher_columns: which column of the teacher each column of `head` stands
      for (a reduced draft vocabulary: its token ids); p is the teacher's law
      on these tokens, renormalised. None: the same columns.
    top_k: columns that the losses of `OF_TOP` look at.
    row_chunk: rows of each batch entry whose logits exist at once.
    vocab_chunk: columns that exist at once; None means all, which is best
      where 4 * row_chunk * V bytes (and as many for a teacher) fit. With fewer,
      'kl', 'tv' and 'reverse_kl' cost another product with both heads (no
      probability without the log-sum-exp of all columns), 'lk' two, the losses
      of `OF_TOP` two, and the gradient of
      'ce' gathers columns, for which a TPU keeps the head in another layout.
    implementation: 'reference', 'xla', or None for 'xla'.

  Returns:
    float32 losses [*batch, R] and, with labels, `is_hit`.

  Raises:
    ValueError: an unknown loss or implementation, a chunk below 1, a loss
      without its labels, teacher or top_k, or one of these without a loss.
  """
  teacher = (teacher_hidden, teacher_head)
  _check(losses, labels, teacher, teacher_columns)
  sizes = dict(row_chunk=row_chunk, vocab_chunk=vocab_chunk, top_k=top_k)
  for name, size in sizes.items():
    _expect(size is None or size >= 1, f'{name}={size}: give a number from 1')
  of_top = sorted(set(losses) & set(OF_TOP))
  _expect(
    bool(of_top) == (top_k is not None),
    f'{of_top} need top_k' if of_top else f'no loss uses top_k={top_k}',
  )
  _expect(
    top_k is None or top_k <= head.shape[1],
    f'top_k={top_k}, but the head has {head.shape[1]} columns',
  )
  if teacher_columns is not None:
    teacher = (teacher_hidden, jnp.take(teacher_head, teacher_columns, axis=1))
  teacher_hidden, teacher_head = jax.lax.stop_gradient(teacher)
  if teacher_head is not None and teacher_head.shape[1] != head.shape[1]:
    raise ValueError(
      f'linear_xent: the teacher has {teacher_head.shape[1]} columns, the head'
      f' {head.shape[1]}; give teacher_columns'
    )
  with jax.named_scope('loss'):
    return choose.run(
      IMPLEMENTATIONS,
      implementation,
      hidden,
      head,
      losses=tuple(losses),
      labels=labels,
      teacher_hidden=teacher_hidden,
      teacher_head=teacher_head,
      top_k=top_k,
      row_chunk=row_chunk,
      vocab_chunk=head.shape[1] if vocab_chunk is None else vocab_chunk,
    )


def linear_argmax(
  hidden: Float[Array, '*batch R D'],
  head: Float[Array, 'D V'],
  *,
  row_chunk: int = 128,
) -> Int[Array, '*batch R']:
  """Column of every row's largest logit, the lowest of equal ones.

  No gradient. `row_chunk` rows of each batch entry have logits at once.
  """
  _expect(row_chunk >= 1, f'row_chunk={row_chunk}: give a number from 1')
  hidden, head = jax.lax.stop_gradient((hidden, head))
  return xla.linear_argmax(hidden, head, row_chunk=row_chunk)


def _check(losses, labels, teacher, columns):
  unknown = sorted(set(losses) - set(LOSSES))
  _expect(
    losses and not unknown and not isinstance(losses, str),
    f'losses={losses!r}: choose from {LOSSES}',
  )
  _expect('ce' not in losses or labels is not None, "'ce' needs labels")
  needing = sorted(set(losses) & set(OF_TEACHER))
  given = [x is not None for x in teacher]
  _expect(
    all(given) if needing else not any(given),
    f'{needing} need teacher_hidden and teacher_head'
    if needing
    else f'no loss of {list(losses)} uses the teacher; leave it out',
  )
  _expect(
    columns is None or all(given), 'teacher_columns say nothing without teacher'
  )


def _expect(is_good, message):
  if not is_good:
    raise ValueError(f'linear_xent: {message}')
