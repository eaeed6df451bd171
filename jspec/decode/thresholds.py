# SPDX-License-Identifier: MIT
"""Top-k and top-p as thresholds, without sorting the vocabulary.

Both filters keep {z : sum of weights of larger tokens < target}: top-k with
weight 1 and target k, top-p with weight exp(z) and target p times the mass. The
smallest kept value is bracketed by two tokens and bisected; after every pass
both ends snap to tokens, so it ends exactly, ties and all, in about log2(range
over gap) passes (10 to 20 for 49,152 tokens).

Passes over a whole vocabulary are what costs, so they first run over the
tokens of the blocks with the largest maxima. No token outside them exceeds the
largest maximum left out; if the tokens above that already reach the target, the
threshold is among them. Rows where they do not are bisected over everything,
one after the other (one row fits in a cache, and few rows need it).
"""

import jax.numpy as jnp
from jax import lax

from jspec.typing import Array, Bool, Float, Int

BLOCK = 128
NUM_CANDIDATE_BLOCKS = 64


def top_k_top_p(
  z: Float[Array, 'B V'],
  w: Float[Array, 'B V'],
  top_k: Int[Array, 'B'],
  top_p: Float[Array, 'B'],
) -> Float[Array, 'B']:
  """The smallest z that survives top-k (0: off) and then top-p (1: off).

  Args:
    z: tempered logits; -inf for tokens that are masked out.
    w: exp(z).
    top_k: tokens to keep.
    top_p: mass to keep of what top-k kept.
  """
  mass = fixed_sum(w)
  num_blocks = -(-z.shape[-1] // BLOCK)
  is_asking = (top_k > 0) | (top_p < 1)
  if num_blocks <= NUM_CANDIDATE_BLOCKS:
    return _least(z, w, mass, top_k, top_p, is_asking)

  z_blocks = _blocks(z, num_blocks)
  maxima, chosen = lax.top_k(
    jnp.max(z_blocks, axis=-1), NUM_CANDIDATE_BLOCKS + 1
  )
  left_out = maxima[:, -1:]
  near = jnp.take_along_axis(z_blocks, chosen[:, :-1, None], axis=1)
  near = near.reshape(z.shape[0], -1)
  near_w = jnp.exp(near)
  is_above = near > left_out
  num_above = jnp.sum(is_above, axis=-1)
  mass_above = fixed_sum(jnp.where(is_above, near_w, 0.0))
  # With top-k covered, top-p works on tokens that are all candidates.
  is_covered = is_asking & jnp.where(
    top_k > 0, num_above >= top_k, mass_above >= top_p * mass
  )
  found = _least(near, near_w, mass, top_k, top_p, is_covered)
  is_missing = is_asking & ~is_covered

  def widened(row):
    is_missing, found, *tokens = row
    one = [x[None] for x in tokens]
    return lax.cond(
      is_missing,
      lambda: _least(*one, jnp.ones((1,), bool))[0],
      lambda: found,
    )

  return lax.cond(
    jnp.any(is_missing),
    lambda: lax.map(widened, (is_missing, found, z, w, mass, top_k, top_p)),
    lambda: found,
  )


def fixed_sum(x: Float[Array, 'B N']) -> Float[Array, 'B']:
  """Sums each row in an order that no batch size or compiler changes."""
  while x.shape[-1] > 1:
    x = jnp.pad(x, ((0, 0), (0, x.shape[-1] % 2)))
    half = x.shape[-1] // 2
    x = x[:, :half] + x[:, half:]
  return x[:, 0]


def _least(z, w, mass, top_k, top_p, is_asking):
  """Both filters over the given tokens; -inf for rows that do not ask."""
  has_k = is_asking & (top_k > 0)
  has_p = is_asking & (top_p < 1)
  least_k = smallest_kept(z, jnp.ones_like(z), top_k.astype(z.dtype), has_k)
  w = jnp.where(z >= least_k[:, None], w, 0.0)
  mass = jnp.where(has_k, fixed_sum(w), mass)
  return jnp.maximum(least_k, smallest_kept(z, w, top_p * mass, has_p))


def smallest_kept(
  z: Float[Array, 'B N'],
  w: Float[Array, 'B N'],
  target: Float[Array, 'B'],
  is_asking: Bool[Array, 'B'],
) -> Float[Array, 'B']:
  """The smallest z with less than `target` weight above it; -inf if not asked.

  `low` is the smallest token not yet ruled out, `high` the smallest token known
  to be kept; every pass moves one of them to another token.
  """
  high = jnp.where(is_asking, jnp.max(z, axis=-1), -jnp.inf)
  low = jnp.min(jnp.where(z > -jnp.inf, z, jnp.inf), axis=-1)
  low = jnp.minimum(jnp.where(is_asking, low, -jnp.inf), high)

  def step(ends):
    low, high = ends
    middle = low + (high - low) * 0.5
    middle = jnp.where(middle < high, middle, low)
    is_above = z > middle[:, None]
    weight = fixed_sum(jnp.where(is_above, w, 0.0))
    above = jnp.min(jnp.where(is_above, z, jnp.inf), axis=-1)
    below = jnp.max(jnp.where(is_above, -jnp.inf, z), axis=-1)
    is_active = low < high
    is_out = weight >= target
    return (
      jnp.where(is_active & is_out, above, low),
      jnp.where(is_active & ~is_out, below, high),
    )

  _, high = lax.while_loop(
    lambda ends: jnp.any(ends[0] < ends[1]), step, (low, high)
  )
  return high


def _blocks(z, num_blocks):
  padding = num_blocks * BLOCK - z.shape[-1]
  z = jnp.pad(z, ((0, 0), (0, padding)), constant_values=-jnp.inf)
  return z.reshape(z.shape[0], num_blocks, BLOCK)
