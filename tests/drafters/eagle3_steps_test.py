# SPDX-License-Identifier: MIT
"""What a simulated step may see, and that decoding computes the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.cache import paged
from jspec.drafters import anchors, base, recurrent
from jspec.testing import toy
from tests.drafters import small_eagle3

LENGTH, NUM_STEPS = 16, 4


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def drafter(target):
  return small_eagle3.drafter(target)


def _at(*index):
  index = jnp.asarray([index, index], jnp.int32)
  return anchors.Anchors(index, jnp.ones(index.shape, bool))


@jax.jit
def _hidden(drafter, batch, at):
  return drafter.train_hidden(batch, at, NUM_STEPS)


def _moved(drafter, batch, changed, at):
  """Whether each row and step [A G] differs between two batches."""
  before, after = (
    np.asarray(_hidden(drafter, x, at)) for x in (batch, changed)
  )
  difference = np.abs(after - before).max(axis=(0, 3))
  assert np.all((difference == 0) | (difference > 1e-5))
  return difference > 0


def _with(batch, name, position, value):
  values = np.array(getattr(batch, name))
  values[:, position] = value
  return dataclasses.replace(batch, **{name: jnp.asarray(values)})


def test_row_sees_features_up_to_its_own(target, drafter):
  batch, at = small_eagle3.batch(target), _at(5, 9)
  for position in range(LENGTH):
    changed = _with(batch, 'taps', position, 3.0)
    moved = _moved(drafter, batch, changed, at)
    # The feature of the anchor, in the row behind, is not known yet.
    want = [[position <= row] * NUM_STEPS for row in (4, 8)]
    np.testing.assert_array_equal(moved, want)


def test_step_sees_the_tokens_it_was_fed(target, drafter):
  batch, at = small_eagle3.batch(target), _at(5, 9)
  for position in range(LENGTH):
    token = (batch.tokens[:, position] + 1) % 60
    changed = _with(batch, 'tokens', position, token)
    moved = _moved(drafter, batch, changed, at)
    # Token 0 is fed to no row; anchor + step is the last one of a step.
    want = [
      [0 < position <= anchor + step for step in range(NUM_STEPS)]
      for anchor in (5, 9)
    ]
    np.testing.assert_array_equal(moved, want)


def test_row_sees_no_other_rows_steps_and_no_other_document(target, drafter):
  segments = np.ones((2, LENGTH), np.int32)
  segments[:, 7:] = 2
  batch = small_eagle3.batch(target, segments)
  both, alone = (
    _hidden(drafter, batch, _at(5, 10)),
    _hidden(drafter, batch, _at(10, 10)),
  )
  np.testing.assert_allclose(both[:, 1], alone[:, 1], atol=1e-6)
  for name, value in (('taps', 3.0), ('tokens', 1)):
    for position in (3, 8):
      changed = _with(batch, name, position, value)
      moved = _moved(drafter, batch, changed, _at(5, 10))
      # Tokens of document 2 are fed to row 4 by steps 2 and 3: as token 0.
      want = [[position == 3] * NUM_STEPS, [position == 8] * NUM_STEPS]
      np.testing.assert_array_equal(moved, want)


def test_positions_are_those_of_the_document(target, drafter):
  """A document packed behind another gives what it gives alone."""
  segments = np.ones((2, LENGTH), np.int32)
  segments[:, 7:] = 2
  packed = small_eagle3.batch(target, segments)
  cut = jax.tree.map(lambda x: x[:, 7:], packed)
  want = _hidden(drafter, cut, _at(3, 5))
  got = _hidden(drafter, packed, _at(10, 12))
  np.testing.assert_allclose(got, want, atol=1e-4)
  # Negative control: attention is relative, so stretch them to see that they
  # count at all.
  shifted = dataclasses.replace(packed, positions=2 * packed.positions)
  assert np.abs(_hidden(drafter, shifted, _at(10, 12)) - want).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
  'changes',
  [{}, {'norm_output': True, 'fc_norm': True}],
  ids=['plain', 'norms'],
)
def test_simulated_steps_equal_a_rollout_through_the_cache(target, changes):
  """The forced tokens of the text, one drafted node after the other."""
  drafter = small_eagle3.drafter(target, **changes)
  batch, anchor = small_eagle3.batch(target), 9
  want = _hidden(drafter, batch, _at(anchor))[:, 0]
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)
  forced = batch.tokens[:, anchor + 1 : anchor + NUM_STEPS]

  @jax.jit
  def rollout(drafter, state, table):
    for start, count in ((0, 4), (4, 5)):  # Chunks with garbage behind.
      span = slice(start, start + 8)
      num_rows = jnp.full((2,), count, jnp.int32)
      rows = base.Committed(
        batch.tokens[:, span],
        batch.taps[:, span],
        num_rows,
        batch.tokens[:, start + count],
      )
      state = drafter.commit(state, table, rows)
      table = paged.advance(table, num_rows, jnp.zeros((), bool))
    run, start, root = drafter.recurrence(state, table)
    out, logits = [root.hidden], [root.logits]
    memory, words = start(NUM_STEPS - 1), tree.chain_words(2, NUM_STEPS - 1)
    for level in range(NUM_STEPS - 1):
      nodes = recurrent.Nodes(
        forced[:, level : level + 1],
        out[-1][:, None],
        words[:, level : level + 1],
        jnp.int32(level),
      )
      memory, hidden, scores = run(memory, nodes)
      out.append(hidden[:, 0])
      logits.append(scores[:, 0])
    return jnp.stack(out, 1), jnp.stack(logits, 1)

  hidden, logits = rollout(drafter, state, table)
  np.testing.assert_allclose(hidden, drafter.fed_back(want), atol=1e-4)
  trained = drafter.normed(want) @ drafter.head[...]
  np.testing.assert_allclose(logits, trained, atol=1e-4)
  # Negative control: without the keys of its own steps a row says otherwise.
  one = dataclasses.replace(batch, tokens=jnp.roll(batch.tokens, 1, axis=1))
  assert np.abs(_hidden(drafter, one, _at(anchor))[:, 0] - want).max() > 1e-2
