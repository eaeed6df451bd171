# SPDX-License-Identifier: MIT
"""Siblings come in the order, and with the law, that verification assumes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.trees import candidates, draws

NUM_DRAWS = 20_000
_jitted = jax.jit(draws.children, static_argnums=(2, 5))


def draw(
  log_probs, num_children, how, temperature=1.0, rows=NUM_DRAWS, seed=0, nodes=1
):
  """Children [rows, nodes, R] of equal nodes, and their law."""
  log_probs = jnp.asarray(log_probs, jnp.float32)
  ids = 10 + jnp.arange(log_probs.size, dtype=jnp.int32)
  shape = (rows, nodes, log_probs.size)
  behind = candidates.Candidates(
    jnp.broadcast_to(log_probs, shape), jnp.broadcast_to(ids, shape)
  )
  drawn, law = _jitted(
    behind,
    jnp.arange(nodes),
    num_children,
    jnp.full((rows,), temperature, jnp.float32),
    jax.random.split(jax.random.key(seed), rows),
    how,
  )
  return np.asarray(drawn) - 10, np.asarray(law[1])


def ordered_law(q, num_children, how):
  """Probability of every sequence of children."""
  law = {}
  for sequence in itertools.product(range(len(q)), repeat=num_children):
    weight, left = 1.0, 1.0
    for i, token in enumerate(sequence):
      if how == 'without_replacement':
        weight *= 0.0 if token in sequence[:i] else q[token] / left
        left -= q[token]
      else:
        weight *= q[token]
    if weight > 0:
      law[sequence] = weight
  return law


def p_value(drawn, law):
  found = {}
  for sequence in map(tuple, drawn.tolist()):
    found[sequence] = found.get(sequence, 0) + 1
  if set(found) - set(law):
    return 0.0
  observed = np.array([found.get(sequence, 0) for sequence in law])
  expected = np.array([len(drawn) * weight for weight in law.values()])
  return stats.chisquare(observed, expected).pvalue


Q = np.array([0.5, 0.25, 0.15, 0.1])


@pytest.mark.parametrize('how', draws.HOW)
@pytest.mark.parametrize('temperature', [0.5, 1.0, 1.5])
def test_siblings_follow_their_law_in_order(how, temperature):
  drawn, probs = draw(np.log(Q), 3, how, temperature)
  q = Q ** (1 / temperature) / np.sum(Q ** (1 / temperature))
  np.testing.assert_allclose(probs[0, 0], q, rtol=1e-5)
  assert p_value(drawn[:, 0], ordered_law(q, 3, how)) > 1e-3


def test_wrong_law_is_noticed():
  """Negative controls: the other way of drawing, another order, another q."""
  drawn, _ = draw(np.log(Q), 3, 'without_replacement')
  law = ordered_law(Q, 3, 'without_replacement')
  assert p_value(drawn[:, 0], ordered_law(Q, 3, 'independent')) < 1e-6
  assert p_value(drawn[:, 0, ::-1], law) < 1e-6
  assert p_value(np.sort(drawn[:, 0]), law) < 1e-6
  other = Q**2 / np.sum(Q**2)
  assert (
    p_value(drawn[:, 0], ordered_law(other, 3, 'without_replacement')) < 1e-6
  )


def test_nodes_and_rows_draw_for_themselves():
  drawn, _ = draw(np.log(Q), 1, 'without_replacement', nodes=2)
  law = {(a, b): Q[a] * Q[b] for a in range(4) for b in range(4)}
  assert p_value(drawn[:, :, 0], law) > 1e-3
  assert p_value(np.stack([drawn[:-1, 0, 0], drawn[1:, 0, 0]], 1), law) > 1e-3


def test_draws_are_a_function_of_key_and_node_number():
  alone, _ = draw(np.log(Q), 3, 'without_replacement', rows=4)
  again, _ = draw(np.log(Q), 3, 'without_replacement', rows=4, nodes=3)
  np.testing.assert_array_equal(alone[:, 0], again[:, 0])


@pytest.mark.parametrize('how', draws.HOW)
def test_first_is_the_argmax_when_temperature_is_zero(how):
  drawn, probs = draw(np.log(Q), 3, how, 0.0, rows=5)
  np.testing.assert_array_equal(probs[:, 0], [[1, 0, 0, 0]] * 5)
  expected = [0, 1, 2] if how == 'without_replacement' else [0, 0, 0]
  np.testing.assert_array_equal(drawn[:, 0], [expected] * 5)


def test_child_that_cannot_be_drawn_repeats_the_first():
  """Two tokens of three have rounded to 0: none may stand in for a draw."""
  drawn, probs = draw([0.0, -500.0, -600.0], 3, 'without_replacement', rows=6)
  np.testing.assert_array_equal(probs[:, 0], [[1, 0, 0]] * 6)
  np.testing.assert_array_equal(drawn[:, 0], np.zeros((6, 3)))
  drawn, _ = draw([np.log(0.5), np.log(0.5), -np.inf], 3, draws.HOW[0], rows=64)
  np.testing.assert_array_equal(drawn[:, 0, 2], drawn[:, 0, 0])
  assert np.all(drawn[:, 0, 0] != drawn[:, 0, 1])
  assert 0 < drawn[:, 0, 0].mean() < 1


@pytest.mark.parametrize('how', draws.HOW)
def test_law_is_a_point_where_the_drafter_broke(how):
  drawn, probs = draw([np.nan] * 4, 2, how, rows=3)
  np.testing.assert_array_equal(probs[:, 0], [[1, 0, 0, 0]] * 3)
  np.testing.assert_array_equal(drawn[:, 0], np.zeros((3, 2)))
