# SPDX-License-Identifier: MIT
"""Losses against a teacher, from what `kernels/linear_xent` says of every slot.

With alpha = 1 - TV(p, q) the chance that a draft of q is accepted by p:

  LK hybrid   lambda KL + (1 - lambda) TV,  lambda = exp(-eta sg(alpha))
  end to end  1 - 1/n sum_j prod_{i <= j} alpha_i     of a chain of n slots
  confidence  BCE(logit, sg(alpha))

sg stops gradients. Sources: arXiv 2602.23881 (LK), AngelSpec (end to end, and
its surrogate), arXiv 2607.05147 (confidence).
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float


def lk_hybrid(
  kl: Float[Array, '*any'], tv: Float[Array, '*any'], eta: float
) -> Float[Array, '*any']:
  """KL where hardly anything is accepted, TV where most is.

  Both over the same columns (all, or both renormalised over the teacher's top).
  eta 0 is KL.
  """
  share = jnp.exp(-eta * jax.lax.stop_gradient(1 - tv))
  return share * kl + (1 - share) * tv


def confidence(
  logits: Float[Array, '*any'], tv: Float[Array, '*any']
) -> Float[Array, '*any']:
  """Cross-entropy of a confidence logit against the chance to be accepted.

  The gradient goes to the logit only.
  """
  goal = jnp.clip(1 - jax.lax.stop_gradient(tv), 0, 1)
  return jnp.logaddexp(0, logits) - goal * logits


def end_to_end(
  tv: Float[Array, '*any G'], counts: Bool[Array, '*any G']
) -> Float[Array, '']:
  """Mean over chains of the share of their slots that is not accepted.

  Chains without a slot that counts are left out. Give a contiguous run: a slot
  that does not count is passed over as if it were accepted.
  """
  alpha = jnp.where(counts, 1 - tv, 1.0)
  accepted = jnp.sum(jnp.cumprod(alpha, axis=-1) * counts, axis=-1)
  return _mean_over_chains(1 - accepted / _at_least_one(counts), counts)


def end_to_end_surrogate(
  losses: Float[Array, '*any G'],
  tv: Float[Array, '*any G'],
  counts: Bool[Array, '*any G'],
) -> Float[Array, '']:
  """Mean over chains of sum_m W_m loss_m; no gradient flows into W_m.

    W_m = 1/n prod_{i < m} alpha_i S_m,    S_m = 1 + alpha_{m+1} S_{m+1}

  how much one more accepted at slot m adds to the chain. With TV for the loss
  the gradient is that of `end_to_end`; another loss may learn faster.
  """
  alpha = jnp.where(counts, 1 - jax.lax.stop_gradient(tv), 1.0)
  reach = jnp.cumprod(alpha, axis=-1)
  before = jnp.concatenate(
    [jnp.ones_like(reach[..., :1]), reach[..., :-1]], axis=-1
  )
  # From the last slot back; a product divided by alpha would not do at 0.
  rest, behind = jnp.zeros_like(alpha[..., 0]), []
  for m in reversed(range(alpha.shape[-1])):
    rest = rest + counts[..., m]
    behind.append(rest)
    rest = alpha[..., m] * rest
  weights = before * jnp.stack(behind[::-1], axis=-1) * counts
  total = jnp.sum(weights * losses, axis=-1) / _at_least_one(counts)
  return _mean_over_chains(total, counts)


def _at_least_one(counts):
  return jnp.maximum(jnp.sum(counts, axis=-1), 1)


def _mean_over_chains(values, counts):
  is_chain = jnp.any(counts, axis=-1)
  return jnp.sum(values * is_chain) / jnp.maximum(jnp.sum(is_chain), 1)
