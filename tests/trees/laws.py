# SPDX-License-Identifier: MIT
"""Draft laws given as tables, and drafters that read them.

Context 0 is the anchor; the child with token v of context c is c * V + v + 1.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.trees import candidates


def table(rng, rows, vocab, depth, kind='plain') -> np.ndarray:
  """log q [B, contexts, V] for all contexts shorter than `depth`."""
  num_contexts = sum(vocab**d for d in range(depth))
  logits = rng.normal(size=(rows, num_contexts, vocab)) * 2
  if kind == 'ties':
    logits = np.round(logits / 2)
  elif kind == 'zeros':
    logits[rng.random(logits.shape) < 0.3] = -np.inf
    logits[..., 1] = 0.0
  elif kind == 'certain':
    sure = rng.random((rows, num_contexts)) < 0.6
    logits[sure] = -np.inf
    logits[..., 1] = np.where(sure, 0.0, logits[..., 1])
  log_probs = jax.nn.log_softmax(jnp.asarray(logits, jnp.float32), axis=-1)
  return np.array(candidates.clean(log_probs))


def root(log_probs, count) -> candidates.Candidates:
  """Candidates behind the anchor."""
  return candidates.Candidates(*jax.lax.top_k(log_probs[:, 0], count))


def by_slot(log_probs, width, count):
  """A drafter that keeps what it knows by beam slot: `step` and its state."""
  log_probs = jnp.asarray(log_probs)
  rows, _, vocab = log_probs.shape

  def step(state, beam):
    before = jnp.take_along_axis(state, beam.parents, axis=1)
    context = before * vocab + beam.tokens + 1
    return context, _look_up(log_probs, context, count)

  return step, jnp.zeros((rows, width), jnp.int32)


def by_scratch_row(log_probs, width, num_levels, count):
  """A drafter that writes rows once and sees them through `ancestors`."""
  log_probs = jnp.asarray(log_probs)
  rows, _, vocab = log_probs.shape
  size = width * num_levels

  def step(state, beam):
    state = jax.lax.dynamic_update_slice(
      state, beam.tokens, (0, beam.level * width)
    )
    index = jnp.arange(size)
    words = beam.ancestors[:, :, index // 32]
    seen = (words >> (index % 32).astype(jnp.uint32)) & 1
    context = jnp.zeros((rows, width), jnp.int32)
    # Rows lie by level, so a node sees its path from the top down.
    for row in range(size):
      deeper = context * vocab + state[:, None, row] + 1
      context = jnp.where(seen[:, :, row] == 1, deeper, context)
    return state, _look_up(log_probs, context, count)

  return step, jnp.zeros((rows, size), jnp.int32)


def _look_up(log_probs, context, count):
  # Nothing is known of what is never run on: a fill slot may point anywhere.
  inside = jnp.minimum(context, log_probs.shape[1] - 1)
  law = jnp.take_along_axis(log_probs, inside[:, :, None], axis=1)
  return candidates.Candidates(*jax.lax.top_k(law, count))


def path_log_prob(log_probs, path) -> np.float32:
  """Of a path in one row's table [contexts, V], added as builders add."""
  total, context = np.float32(0), 0
  for token in path:
    total = np.float32(total + log_probs[context, token])
    context = context * log_probs.shape[-1] + token + 1
  return total


def best_children(log_probs, path, count) -> list[tuple[int, ...]]:
  """The `count` most probable children of a path, equal ones by token."""
  context = 0
  for token in path:
    context = context * log_probs.shape[-1] + token + 1
  order = np.argsort(-log_probs[context], kind='stable')[:count]
  return [(*path, int(token)) for token in order]
