# SPDX-License-Identifier: MIT
"""Siblings come in the order, and with the law, that verification assumes."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jspec.trees import candidates, draws

NUM_DRAWS = 20_000
_jitted = jax.jit(draws.children, static_argnums=(2, 5))


def draw(log_probs, how, temperature=1.0, seed=0, nodes=(0, 1)):
  """Three children [rows, 2, 3] of two nodes with equal laws, and the law."""
  log_probs = jnp.asarray(log_probs, jnp.float32)
  shape = (NUM_DRAWS, 2, log_probs.size)
  behind = candidates.Candidates(
    jnp.broadcast_to(log_probs, shape),
    jnp.broadcast_to(10 + jnp.arange(log_probs.size, dtype=jnp.int32), shape),
  )
  drawn, law = _jitted(
    behind,
    jnp.asarray(nodes),
    3,
    jnp.full((NUM_DRAWS,), temperature, jnp.float32),
    keys(seed),
    how,
  )
  return np.asarray(drawn) - 10, np.asarray(law[1])


@functools.cache
def keys(seed):
  return jax.random.split(jax.random.key(seed), NUM_DRAWS)


def ordered_law(q, num_children, how):
  """Probability of every sequence of children."""
  law = {}
  for sequence in itertools.product(range(len(q)), repeat=num_children):
    weight, left = 1.0, 1.0
    for i, token in enumerate(sequence):
      if how == 'independent':
        weight *= q[token]
      elif token in sequence[:i]:
        weight = 0.0
        break
      else:
        weight *= q[token] / left
        left -= q[token]
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
  drawn, probs = draw(np.log(Q), how, temperature)
  q = Q ** (1 / temperature) / np.sum(Q ** (1 / temperature))
  np.testing.assert_allclose(probs[0, 0], q, rtol=1e-5)
  assert p_value(drawn[:, 0], ordered_law(q, 3, how)) > 1e-3
  assert p_value(drawn[:, 1], ordered_law(q, 3, how)) > 1e-3


def test_wrong_law_is_noticed():
  """Negative controls: the other way of drawing, another order, another q."""
  drawn = draw(np.log(Q), 'without_replacement')[0][:, 0]
  law = ordered_law(Q, 3, 'without_replacement')
  assert p_value(drawn, ordered_law(Q, 3, 'independent')) < 1e-6
  assert p_value(drawn[:, ::-1], law) < 1e-6
  assert p_value(np.sort(drawn), law) < 1e-6
  other = Q**2 / np.sum(Q**2)
  assert p_value(drawn, ordered_law(other, 3, 'without_replacement')) < 1e-6


def test_nodes_and_rows_draw_for_themselves():
  first = draw(np.log(Q), 'without_replacement')[0][:, :, 0]
  law = {(a, b): Q[a] * Q[b] for a in range(4) for b in range(4)}
  assert p_value(first, law) > 1e-3
  assert p_value(np.stack([first[::2, 0], first[1::2, 0]], axis=1), law) > 1e-3


def test_draws_are_a_function_of_key_and_node_number():
  one, _ = draw(np.log(Q), 'without_replacement', nodes=(5, 1))
  other, _ = draw(np.log(Q), 'without_replacement', nodes=(1, 7))
  np.testing.assert_array_equal(one[:, 1], other[:, 0])
  assert np.any(one[:, 0] != other[:, 1])


@pytest.mark.parametrize('how', draws.HOW)
def test_first_is_the_argmax_when_temperature_is_zero(how):
  drawn, probs = draw(np.log(Q), how, 0.0)
  assert np.all(probs == [1, 0, 0, 0])
  assert np.all(drawn == ([0, 1, 2] if how == draws.HOW[0] else [0, 0, 0]))


def test_child_that_cannot_be_drawn_repeats_the_first():
  """Tokens whose q has rounded to 0 may not stand in for a draw."""
  drawn, probs = draw([0.0, -500.0, -600.0, -np.inf], draws.HOW[0])
  assert np.all(probs == [1, 0, 0, 0])
  assert np.all(drawn == 0)
  drawn, _ = draw([np.log(0.5), np.log(0.5), -np.inf, -np.inf], draws.HOW[0])
  np.testing.assert_array_equal(drawn[..., 2], drawn[..., 0])
  assert np.all(drawn[..., 0] != drawn[..., 1])
  assert 0.45 < drawn[..., 0].mean() < 0.55


@pytest.mark.parametrize('how', draws.HOW)
def test_law_is_a_point_where_the_drafter_broke(how):
  drawn, probs = draw([np.nan] * 4, how)
  assert np.all(probs == [1, 0, 0, 0])
  assert np.all(drawn[..., 0] == 0)
