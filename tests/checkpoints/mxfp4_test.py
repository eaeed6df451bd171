# SPDX-License-Identifier: MIT
"""MXFP4 by the formula, value by value, and what is refused."""

import numpy as np
import pytest

from jspec import errors
from jspec.checkpoints import mxfp4, names


def value(code, scale):
  """A value by the standard: sign, two bits of exponent, one of mantissa."""
  sign, exponent, mantissa = code >> 3, code >> 1 & 3, code & 1
  size = (
    mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2 ** (exponent - 1)
  )
  return (-1) ** sign * size * 2.0 ** (scale - 127)


def held(**changes):
  rng = np.random.default_rng(0)
  tensors = {
    'x_blocks': rng.integers(0, 256, (2, 3, 2, 16), np.uint8),
    'x_scales': rng.integers(120, 130, (2, 3, 2), np.uint8),
    'y': np.ones((3,), np.float32),
  }
  tensors |= changes
  return names.Held(
    'here', {name: x for name, x in tensors.items() if x is not None}
  )


def test_every_value_is_as_the_standard_says():
  source = held()
  found = mxfp4.Dequantised(source)
  assert sorted(found.names()) == ['x', 'y']
  assert found.shape('x') == (2, 64, 3)
  assert found.shape('y') == (3,)
  got = found.read('x')
  for expert, column, group, byte in np.ndindex(2, 3, 2, 16):
    packed = int(source.tensors['x_blocks'][expert, column, group, byte])
    scale = int(source.tensors['x_scales'][expert, column, group])
    at = 32 * group + 2 * byte
    assert got[expert, at, column] == value(packed & 15, scale)
    assert got[expert, at + 1, column] == value(packed >> 4, scale)
  np.testing.assert_array_equal(found.read('y'), np.ones(3))


@pytest.mark.parametrize(
  'change, named',
  [
    ({'x_scales': None}, 'tensor x has not both'),
    ({'x_blocks': None}, 'tensor x has not both'),
    ({'x_scales': np.zeros((2, 3, 1), np.uint8)}, 'not MXFP4'),
    ({'x_blocks': np.zeros((2, 3, 2, 8), np.uint8)}, 'not MXFP4'),
  ],
)
def test_what_is_no_pair_is_refused(change, named):
  with pytest.raises(errors.UserError, match=named):
    mxfp4.Dequantised(held(**change))
