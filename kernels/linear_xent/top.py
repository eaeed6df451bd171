# SPDX-License-Identifier: MIT
"""Losses on the teacher's k most probable columns.

With t the teacher's k largest logits, l the student's at the same columns, and
p~, q~ the softmaxes over these k alone:

  kl_topk_a   sum_k p~ (log p~ - log q~)            what is left out has no say
  kl_topk_b   sum_k p (log p - log q)               p, q over all columns
  tv_topk     1/2 sum_k |p~ - q~|

'kl_topk_b' is not least at q = p: it gains by moving mass into the k columns.
Ties at the k-th place go to the lower column. A gradient for the logits is a
number for each of the k, spread over the columns, and for 'kl_topk_b' a share
of q besides, because q's normaliser runs over all columns.

Sources: AngelSpec's distillation losses (variants a and b), arXiv 2602.23881.
"""

import jax
import jax.numpy as jnp

NAMES = ('kl_topk_a', 'kl_topk_b', 'tv_topk')


def largest(chunk, k):
  """(teacher's logits, own logits, columns) [*batch, R, k] of a chunk.

  Where the chunk is narrower the rest is -inf, at column -1.
  """
  logits, teacher, _, _, start, _ = chunk
  count = min(k, teacher.shape[-1])
  values, place = jax.lax.top_k(teacher, count)
  own = jnp.take_along_axis(logits, place, axis=-1)
  # A masked column stands last; its number is that of another chunk's.
  columns = jnp.where(jnp.isneginf(values), -1, place + start)
  widths = [(0, 0)] * (values.ndim - 1) + [(0, k - count)]
  return (
    jnp.pad(values, widths, constant_values=-jnp.inf),
    jnp.pad(own, widths, constant_values=-jnp.inf),
    jnp.pad(columns, widths, constant_values=-1),
  )


def merge(a, b):
  """Two results of `largest` as one; `a` has the lower columns."""
  both = [jnp.concatenate(pair, axis=-1) for pair in zip(a, b, strict=True)]
  values, place = jax.lax.top_k(both[0], a[0].shape[-1])
  rest = [jnp.take_along_axis(x, place, axis=-1) for x in both[1:]]
  return values, *rest


def loss(name, found, stats):
  """A loss from the k columns that were found.

  Args:
    name: out of `NAMES`.
    found: from `largest`, over all columns.
    stats: log-sum-exp over all columns of own ('q') and the teacher's ('p').

  Returns:
    The loss [*batch, R, 1] and its gradient: weights [*batch, R, k] for the
    columns found, and s [*batch, R, 1], by which q is subtracted.
  """
  teacher, own, _ = found
  if name == 'kl_topk_b':
    logp, logq = teacher - stats['p'], own - stats['q']
  else:
    logp, logq = (jax.nn.log_softmax(x, axis=-1) for x in (teacher, own))
  p, q = jnp.exp(logp), jnp.exp(logq)

  def total(x):
    return jnp.sum(x, axis=-1, keepdims=True)

  none = jnp.zeros_like(stats['q'])
  if name == 'tv_topk':
    sided = jnp.sign(q - p) * q / 2
    return total(jnp.abs(p - q)) / 2, sided - total(sided) * q, none
  value = total(jnp.where(p > 0, p * (logp - logq), 0))
  if name == 'kl_topk_a':
    return value, q - p, none
  return value, -p, -total(p)


def spread(weights, columns, start, size):
  """Weights [*batch, R, k] at their columns, as [*batch, R, size]."""
  place = columns - start
  # Negative indices would count from the end: what lies outside goes past it.
  place = jnp.where((columns >= 0) & (place >= 0), place, size)
  dense = jnp.zeros((*weights.shape[:-1], size), weights.dtype)

  def row(dense, place, weights):
    return dense.at[place].set(weights, mode='drop')

  for _ in range(weights.ndim - 1):
    row = jax.vmap(row)
  return row(dense, place, weights)
