# SPDX-License-Identifier: MIT
"""Who sees whom: every form against a truth table that is written out."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.drafters import slot_pages, specblock_attention

ROWS, SLOTS, WIDTH = 3, 3, 40


def _seen(attend, row_keys, num_rows):
  """Which keys each slot of each row sees; key j has value e_j.

  All scores are equal, so what is seen has a share and what is not has none.
  """
  zeros = jnp.zeros((1, num_rows, SLOTS, 1, WIDTH))
  return np.asarray(attend(0, zeros, zeros, row_keys))[0, :, :, 0] > 1e-6


def _values(first, num_rows):
  """Values e_first, e_{first + 1}, ... for the slots of some rows."""
  index = first + np.arange(num_rows * SLOTS)
  return jnp.asarray(np.eye(WIDTH)[index], jnp.float32).reshape(
    1, num_rows, SLOTS, 1, WIDTH
  )


def test_first_block_in_training():
  attend = specblock_attention.train_first(jnp.ones((1, ROWS), jnp.int32))
  found = _seen(attend, _values(0, ROWS), ROWS)
  for i, k in np.ndindex(ROWS, SLOTS):
    for row, slot in np.ndindex(ROWS, SLOTS):
      expected = row < i or (row == i and slot <= k)
      assert found[i, k, row * SLOTS + slot] == expected, (i, k, row, slot)


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'chosen, cross_rows',
  [([0, 1, 2], False), ([0, 1, 2], True), ([2, 0], False)],
)
def test_later_block_in_training(chosen, cross_rows):
  """The third of three blocks, behind 2 slots of the first, 1 of the second."""
  index = jnp.asarray([chosen], jnp.int32)
  nothing = jnp.zeros((1, ROWS, SLOTS, 1, WIDTH))
  first = _values(0, ROWS)
  second = _values(ROWS * SLOTS, len(chosen))
  third = _values(2 * ROWS * SLOTS, len(chosen))
  earlier = [
    [(nothing[:, : len(chosen)], first[:, np.asarray(chosen)])],
    [(nothing[:, : len(chosen)], second)],
  ]
  attend = specblock_attention.train_later(
    [(nothing, first)],
    earlier,
    [jnp.int32(2), jnp.int32(1)],
    index,
    jnp.ones((1, ROWS), jnp.int32),
    cross_rows=cross_rows,
  )
  found = _seen(attend, third, len(chosen))
  for place, k in np.ndindex(len(chosen), SLOTS):
    i, expected = chosen[place], np.zeros(WIDTH, bool)
    for row, slot in np.ndindex(ROWS, SLOTS):
      expected[row * SLOTS + slot] = row < i or (row == i and slot < 2)
    for other, slot in np.ndindex(len(chosen), SLOTS):
      at = other * SLOTS + slot
      is_own = other == place
      expected[ROWS * SLOTS + at] = is_own and slot < 1
      expected[2 * ROWS * SLOTS + at] = (is_own and slot <= k) or (
        cross_rows and chosen[other] < i
      )
    np.testing.assert_array_equal(found[place, k], expected)


def test_documents_and_missing_rows_in_training():
  segments = jnp.asarray([[1, 2, 0]], jnp.int32)
  first = _values(0, ROWS)
  found = _seen(specblock_attention.train_first(segments), first, ROWS)
  assert not found[1, :, :SLOTS].any() and found[1, 2].sum() == 3
  assert not found[2].any()
  nothing = jnp.zeros_like(first)
  later = specblock_attention.train_later(
    [(nothing, first)],
    [[(nothing[:, :2], first[:, np.asarray([1, 0])])]],
    [jnp.int32(1)],
    jnp.asarray([[1, -1]], jnp.int32),
    segments,
    cross_rows=False,
  )
  found = _seen(later, _values(9, 2), 2)
  np.testing.assert_array_equal(np.flatnonzero(found[0, 2]), [SLOTS, 9, 10, 11])
  assert not found[1].any()


def _committed(num_rows):
  """Pages that hold e_0, e_1, ... and their table."""
  table = paged.contiguous_table(1, 2)
  pages = paged.init_pages(1, 2, 2 * SLOTS, 1, WIDTH)
  values = _values(0, ROWS)[None]
  nothing = jnp.zeros_like(values)
  count = jnp.asarray([num_rows], jnp.int32)
  pages = slot_pages.write(pages, table, nothing, values, count)
  return pages, paged.advance(table, count, jnp.zeros((), bool))


def test_first_block_in_decoding():
  pages, table = _committed(1)
  attend = specblock_attention.commit(pages, table, jnp.asarray([2]))
  found = _seen(attend, _values(SLOTS, 2), 2)
  for i, k in np.ndindex(2, SLOTS):
    np.testing.assert_array_equal(
      np.flatnonzero(found[i, k]), np.arange(SLOTS * (i + 1) + k + 1)
    )


@pytest.mark.few(2)
@pytest.mark.parametrize('num_rows', [0, 1, 2, 3])
def test_second_block_in_decoding(num_rows):
  pages, table = _committed(num_rows)
  slots = np.asarray([[0, 2, 1, 1]])
  attend = specblock_attention.branches(pages, table, jnp.asarray(slots), SLOTS)
  found = _seen(attend, _values(20, 4), 4)
  for branch, k in np.ndindex(4, SLOTS):
    newest = max(num_rows - 1, 0) * SLOTS
    expected = list(range(newest)) + [
      newest + slot for slot in range(slots[0, branch] + 1) if num_rows
    ]
    expected += [20 + branch * SLOTS + slot for slot in range(k + 1)]
    np.testing.assert_array_equal(np.flatnonzero(found[branch, k]), expected)


def test_newest_rows_are_those_written_last():
  pages, table = _committed(3)
  _, values = slot_pages.newest(pages, table, SLOTS)
  np.testing.assert_array_equal(values[0, :, :, 0], _values(6, 1)[0, :, :, 0])
