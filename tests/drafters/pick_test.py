# SPDX-License-Identifier: MIT
"""Tokens out of slots: argmax, and draws with their law."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from jspec.drafters import pick

_jitted = jax.jit(pick.chain, static_argnums=5)


def _chain(*args):
  """The draft as numpy arrays: its tokens, confidence and law."""
  draft = _jitted(*args)
  law = draft.q and types.SimpleNamespace(
    ids=np.asarray(draft.q.ids), probs=np.asarray(draft.q.probs)
  )
  return types.SimpleNamespace(
    tokens=np.asarray(draft.tokens),
    confidence=np.asarray(draft.confidence),
    q=law,
  )


def _softmax(logits):
  weights = np.exp(logits - logits.max())
  return weights / weights.sum()


def _logits(rows=1, slots=2, size=6, seed=0):
  rng = np.random.default_rng(seed)
  return np.asarray(rng.normal(size=(rows, slots, size)) * 2, np.float32)


def test_argmax_when_two_are_equal_is_the_lowest_id():
  logits = jnp.asarray([[[0.0, 3.0, 3.0, 1.0]]])
  draft = _chain(logits, jnp.asarray([9]), None, None, None, 4)
  np.testing.assert_array_equal(draft.tokens, [[9, 1]])
  np.testing.assert_allclose(
    draft.confidence[0, 1], _softmax(np.asarray(logits)[0, 0])[1], rtol=1e-6
  )


def test_tokens_are_target_ids_when_the_vocabulary_is_reduced():
  ids = jnp.asarray([10, 20, 30, 40, 50, 60], jnp.int32)
  logits, anchor = _logits(), jnp.asarray([7])
  full = _chain(logits, anchor, None, None, None, 4)
  reduced = _chain(logits, anchor, ids, None, None, 4)
  np.testing.assert_array_equal(
    reduced.tokens[:, 1:], np.asarray(ids)[np.asarray(full.tokens)[:, 1:]]
  )
  keys = jax.random.split(jax.random.key(0), 1)
  drawn = _chain(logits, anchor, ids, jnp.ones(1), keys, 4)
  assert np.all(np.isin(drawn.q.ids[:, :-1], ids))


def test_draws_follow_the_law_they_name():
  rows, temperature, support = 4000, 0.8, 4
  logits = np.broadcast_to(_logits(), (rows, 2, 6))
  keys = jax.random.split(jax.random.key(3), rows)
  draft = _chain(
    logits,
    jnp.zeros(rows, jnp.int32),
    None,
    jnp.full(rows, temperature),
    keys,
    support,
  )
  logits = np.asarray(logits)
  for slot in (1, 2):
    probs = _softmax(logits[0, slot - 1] / temperature)
    order = np.argsort(-probs)[:support]
    want = np.zeros(6)
    want[order] = probs[order] / probs[order].sum()
    law = np.zeros(6)
    parent = slot - 1
    law[np.asarray(draft.q.ids[0, parent])] = draft.q.probs[0, parent]
    np.testing.assert_allclose(law, want, atol=1e-6)
    counts = np.bincount(np.asarray(draft.tokens[:, slot]), minlength=6)
    live = want > 0
    assert counts[~live].sum() == 0

    def statistic(expected, counts=counts, live=live):
      expected = expected[live] * rows
      return np.sum((counts[live] - expected) ** 2 / expected)

    # Chi-square with 3 degrees of freedom: 21.1 is p = 1e-4.
    assert statistic(want) < 21.1
    # The negative control: the law at temperature 1.
    other = _softmax(logits[0, slot - 1])
    assert statistic(other / other[live].sum()) > 21.1
  together = np.asarray(draft.tokens[:, 1:])
  assert len(np.unique(together, axis=0)) > support, 'slots draw in step'


def test_row_is_greedy_when_its_temperature_is_zero():
  logits = np.broadcast_to(_logits(), (2, 2, 6))
  keys = jax.random.split(jax.random.key(0), 2)
  draft = _chain(
    logits, jnp.zeros(2, jnp.int32), None, jnp.asarray([0.0, 1.0]), keys, 6
  )
  np.testing.assert_array_equal(draft.tokens[0, 1:], logits[0].argmax(-1))
  np.testing.assert_array_equal(np.max(draft.q.probs[0, :-1], -1), 1)
  assert np.max(draft.q.probs[1, :-1]) < 1
