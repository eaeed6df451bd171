# SPDX-License-Identifier: MIT
"""The rank head: how far down a slot's candidates the right token is.

  class 0: rank 1    1: ranks 2 to 4    2: ranks 5 to 10    3: beyond 10
  logits = silu([normed hidden; features] W_in) W_out,           4 classes

The features of a slot are 15 numbers of its 20 largest logits, of which alone
the softmax is taken: log-probabilities 1 to 10; the gaps from 1 to 2, 3 and 5;
the probability of 1; the entropy. The head reads, it does not shape: hidden
state and logits come in without gradient (SpecBlock, arXiv 2605.07243).

It errs to one side on purpose. Too low a class leaves the right token out of
the tree; too high a one costs nodes. So the loss of a slot of class t,

  CE(soft(t)) (1 + |t - c| + max(t - c, 0)),       c the class predicted,
  soft(t)[c] ~ 1 / (1 + |c - t| + max(t - c, 0))^2,

pulls twice as hard from below. Classes are rare or common: of a slot's classes
each counts as at most 10 rows of the batch. And because decoding meets slot k
only behind good predictions, a row trains up to and with its first wrong class.
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float, Int

NUM_CLASSES = 4
NUM_LOGITS = 20  # Largest logits that the features are made of.
NUM_RANKED = 10  # Ranks that are told apart from "beyond".
NUM_FEATURES = NUM_RANKED + 5
WIDTH = 256
ROWS_PER_CLASS = 10
_LAST_RANKS = (1, 4, NUM_RANKED)


def features(
  largest: Float[Array, '*batch 20'],
) -> Float[Array, '*batch 15']:
  """What the head is told of a slot's logits, largest first.

  Log-probabilities do as well: a shift of all does not matter.
  """
  logp = jax.nn.log_softmax(largest.astype(jnp.float32), axis=-1)
  p = jnp.exp(logp)
  # A column that cannot be (-inf) has no part in the entropy.
  entropy = -jnp.sum(jnp.where(p > 0, p * logp, 0), axis=-1, keepdims=True)
  first = logp[..., :1]
  found = jnp.concatenate(
    [
      logp[..., :NUM_RANKED],
      *(first - logp[..., rank : rank + 1] for rank in (1, 2, 4)),
      p[..., :1],
      entropy,
    ],
    axis=-1,
  )
  # exp(-60) is no probability; an infinite feature is no number.
  return jax.lax.stop_gradient(jnp.clip(found, -60.0, 60.0))


def scores(
  normed: Float[Array, '*batch D'],
  found: Float[Array, '*batch 15'],
  inner: Float[Array, 'D15 R'],
  outer: Float[Array, 'R 4'],
) -> Float[Array, '*batch 4']:
  """Logits of the classes, without gradient for the first two arguments."""
  normed, found = jax.lax.stop_gradient((normed, found))
  rows = jnp.concatenate([normed, found.astype(normed.dtype)], axis=-1)
  return (jax.nn.silu(rows @ inner) @ outer).astype(jnp.float32)


def labels(
  ranked: Int[Array, '*batch Q'], right: Int[Array, '*batch']
) -> Int[Array, '*batch']:
  """Class of the right column among the columns by falling logit."""
  is_right = ranked[..., :NUM_RANKED] == right[..., None]
  place = jnp.argmax(is_right, axis=-1) + 1
  rank = jnp.where(jnp.any(is_right, axis=-1), place, NUM_RANKED + 1)
  return jnp.sum(
    rank[..., None] > jnp.asarray(_LAST_RANKS), axis=-1, dtype=jnp.int32
  )


def soft_targets() -> Float[Array, '4 4']:
  """Row t is the distribution a slot of class t is trained on."""
  raw = 1 / jnp.square(1 + _distance(*_all_pairs()))
  return raw / jnp.sum(raw, axis=-1, keepdims=True)


def loss(
  logits: Float[Array, 'B A slots 4'],
  classes: Int[Array, 'B A slots'],
  exists: Bool[Array, 'B A slots'],
) -> tuple[Float[Array, ''], dict[str, Array]]:
  """The weighted mean over the slots that train, 0 if there is none.

  Args:
    logits: of the head.
    classes: the labels.
    exists: slots that have one; the first without ends its row.

  Returns:
    The loss; `rank_accuracy` [4] by class and `num_ranked` [4] slots of it.
  """
  predicted = jnp.argmax(logits, axis=-1)
  is_right = predicted == classes
  before = jnp.cumprod(is_right & exists, axis=-1)[..., :-1].astype(bool)
  before = jnp.pad(before, ((0, 0), (0, 0), (1, 0)), constant_values=True)
  counts = exists & before
  one_hot = jax.nn.one_hot(classes, NUM_CLASSES) * counts[..., None]
  per_slot = jnp.sum(one_hot, axis=(0, 1))
  share = jnp.minimum(1.0, ROWS_PER_CLASS / jnp.maximum(per_slot, 1.0))
  weights = jnp.sum(one_hot * share, axis=-1)
  logq = jax.nn.log_softmax(logits, axis=-1)
  ce = -jnp.sum(soft_targets()[classes] * logq, axis=-1)
  ce *= 1 + _distance(classes, predicted)
  value = jnp.sum(ce * weights) / jnp.maximum(jnp.sum(weights), 1e-6)
  num = jnp.sum(per_slot, axis=0)
  right = jnp.sum(one_hot * is_right[..., None], axis=(0, 1, 2))
  metrics = {
    'rank_accuracy': right / jnp.maximum(num, 1.0),
    'num_ranked': num,
  }
  return value, metrics


def _distance(right, other) -> Float[Array, '...']:
  """|t - c| + max(t - c, 0): an underestimate is twice as far."""
  below = (right - other).astype(jnp.float32)
  return jnp.abs(below) + jnp.maximum(below, 0)


def _all_pairs():
  number = jnp.arange(NUM_CLASSES)
  return number[:, None], number[None]
