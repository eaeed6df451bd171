# SPDX-License-Identifier: MIT
"""Reference: all logits at once, gradients by autodiff."""

import jax
import jax.numpy as jnp


def linear_xent(
  hidden,
  head,
  *,
  losses,
  labels,
  teacher_hidden,
  teacher_head,
  top_k,
  row_chunk,
  vocab_chunk,
):
  """Same contract as `api.linear_xent`; the specification. Chunks nothing."""
  del row_chunk, vocab_chunk
  logits = _logits(hidden, head)
  out = {'lse': jax.nn.logsumexp(logits, axis=-1)}
  if labels is not None:
    at_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    out['ce'] = out['lse'] - at_label
    out['is_hit'] = at_label >= jnp.max(logits, axis=-1)
  if teacher_hidden is not None:
    logq = jax.nn.log_softmax(logits)
    teacher = _logits(teacher_hidden, teacher_head)
    logp = jax.nn.log_softmax(teacher)
    p, q = jnp.exp(logp), jnp.exp(logq)
    out['kl'] = jnp.sum(p * (logp - logq), axis=-1)
    out['reverse_kl'] = jnp.sum(q * (logq - logp), axis=-1)
    out['tv'] = jnp.sum(jnp.abs(p - q), axis=-1) / 2
    out['lk'] = -jax.nn.logsumexp(jnp.minimum(logp, logq), axis=-1)
    if top_k is not None:
      out |= _of_top(logits, teacher, logp, logq, top_k)
  return {name: out[name] for name in (*losses, 'is_hit') if name in out}


def _of_top(logits, teacher, logp, logq, top_k):
  _, columns = jax.lax.top_k(teacher, top_k)

  def at(x):
    return jnp.take_along_axis(x, columns, axis=-1)

  # Renormalised over the columns, and not.
  logp_a, logq_a = (
    jax.nn.log_softmax(at(teacher)),
    jax.nn.log_softmax(at(logits)),
  )
  p_a, q_a = jnp.exp(logp_a), jnp.exp(logq_a)
  return {
    'kl_topk_a': jnp.sum(p_a * (logp_a - logq_a), axis=-1),
    'kl_topk_b': jnp.sum(jnp.exp(at(logp)) * at(logp - logq), axis=-1),
    'tv_topk': jnp.sum(jnp.abs(p_a - q_a), axis=-1) / 2,
  }


def _logits(hidden, head):
  return jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
