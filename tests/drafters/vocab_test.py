# SPDX-License-Identifier: MIT
"""The reduced draft vocabulary and its map."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import vocab


def test_map_goes_there_and_back():
  ids = jnp.asarray([1, 4, 9, 30], jnp.int32)
  columns, inside = vocab.to_draft(jnp.asarray([4, 30, 5, 0, 31, 1]), ids)
  np.testing.assert_array_equal(inside, [1, 1, 0, 0, 0, 1])
  np.testing.assert_array_equal(columns, [1, 3, 0, 0, 0, 0])
  np.testing.assert_array_equal(
    vocab.to_target(jnp.arange(4), ids), [1, 4, 9, 30]
  )


def test_map_is_the_identity_when_there_is_none():
  tokens = jnp.asarray([3, 7])
  columns, inside = vocab.to_draft(tokens, None)
  np.testing.assert_array_equal(columns, tokens)
  assert np.all(inside)
  np.testing.assert_array_equal(vocab.to_target(tokens, None), tokens)


@pytest.mark.parametrize(
  'ids, message',
  [
    ([3, 1], 'ascending'),
    ([1, 1], 'ascending'),
    ([0, 0, 5], 'offsets'),
    ([-1, 2], 'outside'),
    ([2, 10], 'outside'),
    ([], 'list of integers'),
    ([0.5], 'list of integers'),
  ],
)
def test_check_refuses_when_the_map_is_bad(ids, message):
  with pytest.raises(errors.UserError, match=message):
    vocab.check(np.asarray(ids), 10)


def test_choose_by_frequency_keeps_the_frequent_and_the_named():
  counts = np.asarray([5, 0, 9, 9, 1, 0])
  np.testing.assert_array_equal(vocab.choose_by_frequency(counts, 2), [2, 3])
  np.testing.assert_array_equal(
    vocab.choose_by_frequency(counts, 3, always=(5,)), [2, 3, 5]
  )
  with pytest.raises(errors.UserError):
    vocab.choose_by_frequency(counts, 7)
