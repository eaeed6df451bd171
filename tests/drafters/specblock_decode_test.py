# SPDX-License-Identifier: MIT
"""Training computes what decoding does, and no row sees what it must not."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.drafters import base, specblock_decode, specblock_loss
from jspec.testing import toy
from jspec.trees import multi_slot
from tests.drafters import specblock_toy

LENGTH, SLOTS = specblock_toy.LENGTH, specblock_toy.SLOTS


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def drafter(target):
  return specblock_toy.drafter(target)


_states = jax.jit(specblock_loss.states)


def _starts(slots, tokens):
  return multi_slot.Starts(
    tokens=tokens, slots=slots, is_live=jnp.ones(slots.shape, bool)
  )


@pytest.mark.slow
def test_training_equals_decoding_with_a_cache(target):
  """Both blocks, from every row, behind every slot."""
  drafter = specblock_toy.drafter(target, loss={'num_blocks': 2})
  batch = specblock_toy.batch(target)
  trained = [
    _states(drafter, batch, specblock_toy.draws(counts=(m,)))
    for m in range(1, SLOTS + 1)
  ]
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)

  @jax.jit
  def decode(drafter, state, table, num_rows):
    # The chunk is longer: what is not committed must not count.
    rows = base.Committed(
      batch.tokens, batch.taps, num_rows, batch.tokens[:, num_rows[0]]
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
    slots = jnp.broadcast_to(jnp.arange(SLOTS), (2, SLOTS))
    tokens = batch.tokens[:, num_rows[0] + 1 + jnp.arange(SLOTS)]
    hidden = specblock_decode.second(
      drafter, state, table, _starts(slots, tokens)
    )
    return state.hidden, hidden

  gaps = []
  for row in range(LENGTH - SLOTS - 2):
    num_rows = jnp.full((2,), row + 1, jnp.int32)
    first, second = decode(drafter, state, table, num_rows)
    for m in range(SLOTS):
      np.testing.assert_allclose(first, trained[m][0][:, row], atol=2e-5)
      gaps.append(np.abs(second[:, m] - trained[m][1][:, row]).max())
  assert max(gaps) < 3e-5


@pytest.mark.slow
def test_published_training_sees_what_decoding_has_not(target, drafter):
  """`cross_rows` changes later blocks of all rows that have one before."""
  batch = specblock_toy.batch(target)
  crossing = specblock_toy.drafter(target, loss={'cross_rows': True})
  moved = _moved(
    _states(drafter, batch, specblock_toy.draws()),
    _states(crossing, batch, specblock_toy.draws()),
  )
  assert not moved[0].any() and not moved[:, 0].any()
  assert moved[1:, 1:].all()


@pytest.mark.slow
def test_chosen_rows_are_computed_as_among_all(target, drafter):
  batch = specblock_toy.batch(target)
  whole = _states(drafter, batch, specblock_toy.draws())
  few = _states(drafter, batch, specblock_toy.draws(9, 3, 6))
  for a, b in zip(whole, few, strict=True):
    np.testing.assert_allclose(a[:, jnp.asarray([9, 3, 6])], b, atol=2e-5)


def _moved(before, after):
  """[blocks, rows] of the first sequence that changed."""
  return np.stack(
    [
      np.abs(np.asarray(a) - np.asarray(b))[0].max(axis=(1, 2)) > 1e-4
      for a, b in zip(before, after, strict=True)
    ]
  )


def test_row_sees_nothing_later(target, drafter):
  batch = specblock_toy.batch(target)
  before = _states(drafter, batch, specblock_toy.draws())
  row = np.arange(LENGTH)
  for at in (0, 5, 11):
    taps = np.array(batch.taps)
    taps[:, at] += 3
    changed = dataclasses.replace(batch, taps=jnp.asarray(taps))
    moved = _moved(before, _states(drafter, changed, specblock_toy.draws()))
    np.testing.assert_array_equal(moved, [row >= at] * 3)
    tokens = np.array(batch.tokens)
    tokens[:, at] = (tokens[:, at] + 1) % 60
    changed = dataclasses.replace(batch, tokens=jnp.asarray(tokens))
    moved = _moved(before, _states(drafter, changed, specblock_toy.draws()))
    # Fed to row at - 1 in block 1, to row at - 3 in block 2, behind 2 slots,
    # and to row at - 4 in block 3.
    expected = np.stack([(row >= at - 1) & (at > 0)] * 3)
    expected[1:, max(at - 3, 0)] |= at >= 3
    expected[2, max(at - 4, 0)] |= at >= 4
    # The last token is repeated where the text is over.
    np.testing.assert_array_equal(moved[:, :-4], expected[:, :-4])


def test_row_sees_no_other_document(target, drafter):
  segments = np.ones((2, LENGTH), np.int32)
  segments[:, 6:11] = 2
  segments[:, 11:] = 0
  batch = specblock_toy.batch(target, segments=segments)
  before = _states(drafter, batch, specblock_toy.draws())
  for at in (2, 7):
    taps = np.array(batch.taps)
    taps[:, at] += 3
    changed = dataclasses.replace(batch, taps=jnp.asarray(taps))
    moved = _moved(before, _states(drafter, changed, specblock_toy.draws()))
    row = np.arange(LENGTH)
    same = (row >= at) & (segments[0] == segments[0, at])
    np.testing.assert_array_equal(moved, [same] * 3)
  # The same document at another place of the sequence, with its own positions.
  alone = {
    name: np.roll(np.asarray(getattr(batch, name)), -6, axis=1)
    for name in ('tokens', 'positions', 'segments', 'is_answer', 'taps')
  }
  alone['segments'][:, 5:] = 0
  alone = dataclasses.replace(
    batch, **{name: jnp.asarray(values) for name, values in alone.items()}
  )
  found = _states(drafter, alone, specblock_toy.draws())
  np.testing.assert_allclose(before[0][:, 6:10], found[0][:, :4], atol=2e-5)
  np.testing.assert_allclose(before[1][:, 6:8], found[1][:, :2], atol=2e-5)
