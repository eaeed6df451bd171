# SPDX-License-Identifier: MIT
"""Products by expert on a CPU are those of XLA, and read no other expert."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import experts_on_cpu

E, D, F = 5, 12, 20


def operands(sizes, num_behind=0, dtype=jnp.float32):
  keys = jax.random.split(jax.random.key(0), 2)
  rows = jax.random.normal(keys[0], (sum(sizes) + num_behind, D), dtype)
  weight = jax.random.normal(keys[1], (len(sizes), D, F), dtype)
  return rows, weight, jnp.asarray(sizes, jnp.int32)


SIZES = [
  (3, 0, 1, 7, 2),
  (0, 0, 0, 0, 9),
  (0, 0, 0, 0, 0),
  (1, 1, 1, 1, 1),
  (40, 0, 3, 21, 8),
]


@pytest.mark.parametrize('slice_bytes', [1 << 20, 4 * F * 4])
@pytest.mark.parametrize('sizes', SIZES)
def test_products_are_those_of_xla(sizes, slice_bytes, monkeypatch):
  monkeypatch.setattr(experts_on_cpu, '_SLICE_BYTES', slice_bytes)
  rows, weight, sizes = operands(sizes)
  got = jax.jit(lambda *args: experts_on_cpu.ragged_dot(*args))(
    rows, weight, sizes
  )
  want = jax.lax.ragged_dot(rows, weight, sizes)
  np.testing.assert_allclose(got, want, atol=1e-5)


def test_no_expert_is_read_that_no_row_chose():
  """Nor do rows behind the last group reach those of a group."""
  rows, weight, sizes = operands((2, 0, 3, 0, 1), num_behind=4)
  weight = weight.at[jnp.asarray([1, 3])].set(jnp.nan)
  rows = rows.at[6:].set(jnp.nan)
  got = experts_on_cpu.ragged_dot(rows, weight, sizes)
  assert got.shape == (10, F) and np.isfinite(got[:6]).all()


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.int8])
def test_other_types_of_weights_are_summed_in_float32(dtype):
  rows, weight, sizes = operands((3, 0, 1, 7, 2))
  weight = (30 * weight).astype(dtype)
  if dtype == jnp.bfloat16:
    rows = rows.astype(dtype)
  got = experts_on_cpu.ragged_dot(rows, weight, sizes)
  assert got.dtype == rows.dtype
  wide = (x.astype(jnp.float32) for x in (rows, weight))
  want = jax.lax.ragged_dot(*wide, sizes).astype(rows.dtype)
  np.testing.assert_allclose(
    got.astype(jnp.float32), want.astype(jnp.float32), rtol=1e-2, atol=1e-3
  )


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.int8])
def test_gradients_are_those_of_xla(dtype):
  rows, weight, sizes = operands((3, 0, 1, 7, 2))
  weight = (2 * weight).astype(dtype)
  wanted = (0, 1) if dtype == jnp.float32 else (0,)

  def loss(product):
    return lambda rows, weight: jnp.sum(
      jnp.sin(product(rows, weight.astype(jnp.float32), sizes))
    )

  def ours(rows, weight):
    return jnp.sum(jnp.sin(experts_on_cpu.ragged_dot(rows, weight, sizes)))

  got = jax.grad(ours, wanted)(rows, weight)
  want = jax.grad(loss(jax.lax.ragged_dot), wanted)(rows, weight)
  for one, other in zip(got, want, strict=True):
    assert np.abs(other).max() > 0.1
    np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
  'num_rows, num_experts, size',
  [(8, 128, 4), (64, 128, 4), (2048, 128, 16), (3000, 128, 32), (9999, 2, 128)],
)
def test_a_block_has_about_the_rows_of_an_expert(num_rows, num_experts, size):
  assert experts_on_cpu.block_size(num_rows, num_experts) == size
