# SPDX-License-Identifier: MIT
"""Weights of draft slots, means under them, and the acceptance they predict.

  loss = sum_k w_k L_k / sum_k w_k,     w_k = mask_k exp(-(k - 1) / gamma)

with k the depth of the slot (arXiv 2602.06036, section 4), or with weights that
follow the drafter (D-PACE).
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float


def decay_weights(num_labels: int, gamma: float) -> Float[Array, 'G']:
  """exp(-(k - 1) / gamma) for k = 1..G; gamma 0 means no decay."""
  depth = jnp.arange(num_labels, dtype=jnp.float32)
  return jnp.exp(-depth / gamma) if gamma else jnp.ones_like(depth)


def dpace_weights(
  ce: Float[Array, '*any G'], counts: Bool[Array, '*any G'], alpha: float
) -> Float[Array, '*any G']:
  """What a slot is worth for the expected accepted length (arXiv 2605.18810).

  With s = (1 - alpha) e^(-CE) + alpha and its prefix products pi,

    w_j = sum_{m >= j} pi_m      over the slots that count; others have weight 0

  With alpha 0 and all slots counting, sum_j w_j CE_j has the gradient of
  -sum_k prod_{i <= k} q_i. No gradient flows into the weights.
  """
  chance = jnp.exp(-jax.lax.stop_gradient(ce.astype(jnp.float32)))
  smooth = jnp.where(counts, (1 - alpha) * chance + alpha, 1.0)
  reach = jnp.cumprod(smooth, axis=-1) * counts
  return jnp.flip(jnp.cumsum(jnp.flip(reach, -1), axis=-1), -1) * counts


def weighted_mean(
  values: Float[Array, '*any'], weights: Float[Array, '*any']
) -> Float[Array, '']:
  """sum(w x) / sum(w); 0 (with zero gradient) when there is no weight."""
  return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1e-6)


def acceptance(
  is_hit: Bool[Array, 'B A G'], exists: Bool[Array, 'B A G']
) -> dict[str, Array]:
  """How greedy drafts would fare against these labels.

  Depth k is accepted when all slots up to k hit. `exists` marks the labels of
  every block (a contiguous run); blocks without any are not counted.

  Returns:
    accuracy [G]: slot k hits, whatever came before (not conditional).
    joint_accuracy [G]: slots 1..k all hit.
    conditional_accuracy [G]: slot k hits given that 1..k-1 did.
    tokens_per_round: 1 + mean length of the hitting prefix.
    num_blocks: blocks counted.
  """
  hits = (is_hit & exists).astype(jnp.float32)
  known = exists.astype(jnp.float32)
  survives = jnp.cumprod(hits, axis=-1)
  reached = jnp.concatenate(
    [jnp.ones_like(hits[..., :1]), survives[..., :-1]], axis=-1
  )

  def ratio(numerator, denominator):
    numerator = jnp.sum(numerator, axis=(0, 1))
    return numerator / jnp.maximum(jnp.sum(denominator, axis=(0, 1)), 1.0)

  num_blocks = jnp.sum(known[..., 0])
  prefix = jnp.sum(survives) / jnp.maximum(num_blocks, 1.0)
  return {
    'accuracy': ratio(hits, known),
    'joint_accuracy': ratio(survives, known),
    'conditional_accuracy': ratio(survives, reached * known),
    'tokens_per_round': 1.0 + prefix,
    'num_blocks': num_blocks,
  }
