# SPDX-License-Identifier: MIT
"""Tiles that the host cuts are those that JAX cuts, number by number."""

import jax
import numpy as np
import pytest

from jspec.targets import reading, tiling
from tests.targets import reading_test


@pytest.mark.few(1)
@pytest.mark.parametrize(
  'how', [{}, {'dtype': 'bfloat16'}, {'weights': 'int8'}], ids=str
)
def test_tiles_are_those_of_the_other_way(how):
  made = []
  for add in (lambda target: target.add_tiles(), tiling.add):
    target = reading.read(
      reading_test.reader('qwen3_moe'), is_split=True, **how
    )
    add(target)
    made.append(jax.tree.leaves((target.tiled, target.tiled_head)))
  assert any(x.ndim == 3 and x.shape[2] == 64 for x in made[0])
  for want, got in zip(*made, strict=True):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(got, want)
