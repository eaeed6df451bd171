# SPDX-License-Identifier: MIT
"""The interpreter sees the mistakes it is there to see."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from tests.kernels import tpu_interpreter


def double(x, *, is_awaited=True, row=0):
  """Copies a row of x in, doubles it, and may forget to wait."""

  def kernel(x, out, buffer, semaphore):
    copy = pltpu.make_async_copy(x.at[pl.ds(row, 8)], buffer, semaphore)
    copy.start()
    if is_awaited:
      copy.wait()
    out[...] = buffer[...] * 2
    if not is_awaited:
      copy.wait()

  return pl.pallas_call(
    kernel,
    in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
    out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype),
    scratch_shapes=[pltpu.VMEM((8, 128), x.dtype), pltpu.SemaphoreType.DMA],
  )(x)


X = jnp.arange(16 * 128, dtype=jnp.float32).reshape(16, 128)


def test_copies_are_counted():
  with tpu_interpreter.running() as record:
    np.testing.assert_array_equal(double(X), 2 * X[:8])
  assert (record.num_copies, record.bytes_copied) == (1, 8 * 128 * 4)


def test_a_race_is_found_and_memory_starts_as_nan():
  with pytest.raises(RuntimeError, match='races'):
    with tpu_interpreter.running():
      assert np.isnan(double(X, is_awaited=False)).all()


def test_a_read_out_of_bounds_raises():
  with pytest.raises(Exception, match='[Oo]ut.of.bound'):
    with tpu_interpreter.running():
      jax.block_until_ready(double(X, row=12))
  with tpu_interpreter.running():  # It left nothing behind.
    np.testing.assert_array_equal(double(X), 2 * X[:8])
