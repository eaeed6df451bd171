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
    logp = jax.nn.log_softmax(_logits(teacher_hidden, teacher_head))
    p, q = jnp.exp(logp), jnp.exp(logq)
    out['kl'] = jnp.sum(p * (logp - logq), axis=-1)
    out['reverse_kl'] = jnp.sum(q * (logq - logp), axis=-1)
    out['tv'] = jnp.sum(jnp.abs(p - q), axis=-1) / 2
  return {name: out[name] for name in (*losses, 'is_hit') if name in out}


def _logits(hidden, head):
  return jnp.matmul(hidden, head, preferred_element_type=jnp.float32)
