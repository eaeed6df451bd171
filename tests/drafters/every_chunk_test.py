# SPDX-License-Identifier: MIT
"""The chunk of a loss changes memory, and neither value nor gradient.

For every method with all its terms at once, for one row and several, for one
block and several: where a head is given a chunk of another shape than it
expects, one of these differs.
"""

import jax
import numpy as np
import pytest
from flax import nnx

from jspec.testing import toy
from tests.drafters import every_method

LENGTH = 16


@pytest.fixture(scope='module')
def target():
  return toy.target()


def value_and_grad(target, name, num_rows, num_anchors, chunk):
  drafter = every_method.drafter(
    target, name, num_anchors=num_anchors, chunk=chunk
  )
  is_answer = np.arange(LENGTH) > np.full((num_rows, 1), 3)
  batch = every_method.batch(target, drafter.taps, is_answer)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)

  @jax.jit
  def run(params, batch, key):
    def loss(params):
      return nnx.merge(graph, params, rest).loss(batch, key)[0]

    return jax.value_and_grad(loss)(params)

  value, grads = run(params, batch, jax.random.key(0))
  return value, nnx.to_flat_state(grads)


@pytest.mark.slow
@pytest.mark.parametrize(
  'num_rows, num_anchors, chunk', [(1, 1, 1), (2, 1, 1), (2, 3, 2)]
)
@pytest.mark.parametrize('name', every_method.NAMES)
def test_chunks_change_neither_value_nor_gradient(
  target, name, num_rows, num_anchors, chunk
):
  shape = (num_rows, num_anchors)
  whole, want = value_and_grad(target, name, *shape, chunk=1000)
  assert np.isfinite(whole) and whole > 0
  value, grads = value_and_grad(target, name, *shape, chunk=chunk)
  np.testing.assert_allclose(value, whole, rtol=1e-5)
  for (path, grad), (_, other) in zip(grads, want, strict=True):
    np.testing.assert_allclose(
      grad[...], other[...], rtol=1e-4, atol=1e-5, err_msg=str(path)
    )
