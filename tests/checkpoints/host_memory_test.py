# SPDX-License-Identifier: MIT
"""Memory that XLA takes, and copies into it however both lie."""

import ml_dtypes
import numpy as np
import pytest

from jspec.checkpoints import host_memory


def test_buffers_begin_where_xla_takes_them():
  for size in (1, 3, 1000):
    made = host_memory.empty((size, 7), np.float32)
    assert made.shape == (size, 7)
    assert made.ctypes.data % 64 == 0


@pytest.mark.parametrize('dtypes', ['ff', 'ee', 'bb', 'bf', 'fb', 'ef'])
@pytest.mark.parametrize('turned', [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_copies_are_the_same_however_they_lie(dtypes, turned):
  known = {'f': np.float32, 'e': np.float16, 'b': ml_dtypes.bfloat16}
  rng = np.random.default_rng(0)
  shape = 300, 70
  values, view = (
    rng.normal(size=shape[::-1] if is_turned else shape).astype(known[dtype])
    for dtype, is_turned in zip(dtypes, turned, strict=True)
  )
  values, view = (
    array.T if is_turned else array
    for array, is_turned in zip((values, view), turned, strict=True)
  )
  host_memory.copy(values, view)
  np.testing.assert_array_equal(view, values.astype(view.dtype))


def test_arrays_of_an_arena_begin_where_xla_takes_them_and_are_apart():
  arena = host_memory.Arena(1 << 16)
  made = [arena.empty((i, 7), np.float32) for i in range(1, 60)]
  made.append(arena.empty((1 << 15,), np.float64))  # More than was said.
  for i, array in enumerate(made):
    assert array.ctypes.data % 64 == 0
    array[...] = i
  for i, array in enumerate(made):
    assert (array == i).all()
