# SPDX-License-Identifier: MIT
"""Residuals on the support of q equal those over the whole vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode.verify import residual

VOCAB, ROWS, SUPPORT = 50, 5, 6
turn_down = jax.jit(residual.turn_down, static_argnames='draws')


def sparse(rng, rows=ROWS):
  """Random p with zeros, q on a few tokens, padded with ids of its own."""
  p = rng.dirichlet(np.ones(VOCAB) * 0.3, size=rows)
  p[rng.uniform(size=p.shape) < 0.3] = 0
  p /= p.sum(axis=1, keepdims=True)
  ids = np.stack([rng.permutation(VOCAB)[:SUPPORT] for _ in range(rows)])
  probs = rng.dirichlet(np.ones(SUPPORT - 2), size=rows)
  probs = np.pad(probs, ((0, 0), (1, 1)))
  ids[:, 0] = ids[:, 2]  # padding repeats an id
  return p, ids, probs


def start(p, ids, probs):
  return residual.start(
    jnp.asarray(p, jnp.float32),
    jnp.asarray(ids, jnp.int32),
    jnp.asarray(probs, jnp.float32),
  )


def dense(ids, probs):
  q = np.zeros((len(ids), VOCAB))
  for row in range(len(ids)):
    np.add.at(q[row], ids[row], probs[row])
  return q


@pytest.mark.few(1)
@pytest.mark.parametrize('draws', ['independent', 'without_replacement'])
def test_turning_down_equals_the_formula_over_the_vocabulary(draws):
  rng = np.random.default_rng(0)
  p, ids, probs = sparse(rng)
  q, left, r = dense(ids, probs), p.copy(), start(p, ids, probs)
  alpha = rng.uniform(0.3, 1, size=ROWS)
  given = jnp.asarray(alpha, jnp.float32)
  for step in range(3):
    token = ids[:, 1 + step]
    ratio = left[range(ROWS), token] / q[range(ROWS), token]
    tokens = jnp.asarray(token, jnp.int32)
    np.testing.assert_allclose(residual.ratio(r, tokens), ratio, rtol=1e-4)
    d = np.maximum(alpha[:, None] * left - q, 0)
    total = d.sum(axis=1)
    np.testing.assert_allclose(
      residual.left_mass(r, given), total, rtol=1e-4, atol=1e-6
    )
    left = d / total[:, None]
    alpha = total / (total + 1 - alpha)
    if draws == 'without_replacement':
      q[range(ROWS), token] = 0
      q /= q.sum(axis=1, keepdims=True)
    r, given = turn_down(r, tokens, given, draws)
    np.testing.assert_allclose(given, alpha, rtol=1e-4)
    found = residual.weights(jnp.asarray(p, jnp.float32), r)
    np.testing.assert_allclose(found, left, atol=1e-5)


def test_only_tokens_with_a_gap_are_left_in_proportion_to_it():
  p = np.array([[0.6, 0.4, 0, 0], [0.3, 0.3, 0.4, 0]])
  ids = np.array([[0, 2], [0, 1]])
  probs = np.array([[0.9, 0.1], [0.2, 0.8]])
  r, alpha = turn_down(
    start(p, ids, probs), jnp.array([0, 1]), jnp.ones(2), 'independent'
  )
  found = np.asarray(residual.weights(jnp.asarray(p, jnp.float32), r))
  np.testing.assert_allclose(
    found / found.sum(axis=1, keepdims=True),
    [[0, 1, 0, 0], [0.2, 0, 0.8, 0]],
    atol=1e-6,
  )
  np.testing.assert_array_equal(alpha, 1)


def test_equal_laws_leave_the_target_and_nothing_is_nan():
  p = np.array([[0.5, 0.25, 0.25, 0]] * 2)
  r, alpha = turn_down(
    start(p, np.array([[0, 1, 2]] * 2), p[:, :3]),
    jnp.array([0, 0]),
    jnp.array([1.0, 0.5]),
    'independent',
  )
  np.testing.assert_array_equal(alpha, [1, 0])
  np.testing.assert_allclose(
    residual.weights(jnp.asarray(p, jnp.float32), r), p, atol=1e-6
  )


def test_nothing_changes_where_no_token_was_drawn():
  p = np.array([[0.5, 0.5, 0, 0], [0, 0, 0, 0]])
  ids, probs = np.array([[0, 1]] * 2), np.array([[1.0, 0.0]] * 2)
  before = start(p, ids, probs)
  # Row 0: a token outside the support. Row 1: a row that has no law.
  tokens, alpha = jnp.array([1, 0]), jnp.array([0.7, 0.7])
  assert residual.ratio(before, tokens).tolist() == [0, 0]
  after, kept = residual.turn_down(before, tokens, alpha, 'without_replacement')
  np.testing.assert_array_equal(kept, alpha)
  np.testing.assert_array_equal(after.p, before.p)
  np.testing.assert_array_equal(after.q, before.q)
  found = residual.weights(jnp.asarray(p, jnp.float32), after)
  np.testing.assert_array_equal(found, p)


def test_support_that_is_used_up_has_no_chance_left():
  p, ids = np.array([[0.2, 0.3, 0.5]]), np.array([[0, 1]])
  r, alpha = start(p, ids, np.array([[0.6, 0.4]])), jnp.ones(1)
  for token in (0, 1):
    r, alpha = turn_down(r, jnp.array([token]), alpha, 'without_replacement')
  np.testing.assert_array_equal(r.q, 0)
  assert residual.ratio(r, jnp.array([0])).tolist() == [0]
  found = residual.weights(jnp.asarray(p, jnp.float32), r)
  np.testing.assert_allclose(found, [[0, 0, 1]], atol=1e-6)
