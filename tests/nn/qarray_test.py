# SPDX-License-Identifier: MIT
"""Weights of eight bits: how far off, and that products use the scales."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import experts, fused, layers, qarray, tiles

FORMS = qarray.FORMS


def weight(*shape, seed=0):
  """A weight whose columns differ in size, one of them zero."""
  rng = np.random.default_rng(seed)
  sizes = np.exp(rng.uniform(-3, 3, shape[-1]))
  sizes[0] = 0
  return (rng.normal(size=shape) * sizes).astype(np.float32)


@pytest.mark.parametrize('form, bound', [('int8', 1 / 254), ('fp8', 1 / 16)])
def test_a_weight_is_off_by_half_a_step_at_most(form, bound):
  w = weight(48, 64)
  quantised = qarray.quantise(w, form)
  assert quantised.values.dtype == qarray.DTYPES[form]
  assert (quantised.shape, quantised.scale.shape) == ((48, 64), (1, 64))
  assert quantised.nbytes == 48 * 64 + 4 * 64
  largest = np.maximum(np.max(np.abs(w), axis=0), 1e-30)
  off = np.abs(qarray.dequantised(quantised) - w) / largest
  assert 0.5 * bound < np.max(off) <= 1.001 * bound
  assert not np.any(qarray.dequantised(quantised)[:, 0])


@pytest.mark.parametrize('form', FORMS)
def test_host_and_device_quantise_alike(form):
  w = weight(3, 16, 8)
  host, device = qarray.quantise(w, form), qarray.quantise(jnp.asarray(w), form)
  # A device may divide by multiplying: the last bit of a scale differs.
  np.testing.assert_allclose(host.scale, device.scale, rtol=1e-6)
  assert np.mean(host.values != np.asarray(device.values)) < 0.01


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('is_cut', [False, True])
def test_product_is_that_of_the_dequantised_weight(form, is_cut):
  quantised = jax.tree.map(jnp.asarray, qarray.quantise(weight(32, 128), form))
  x = jax.random.normal(jax.random.key(1), (2, 3, 32))
  expected = x @ qarray.dequantised(quantised)
  if is_cut:
    quantised = tiles.cut_all(quantised)
    assert quantised.values.shape == (2, 32, 64)
    assert quantised.scale.shape == (2, 1, 64)
  np.testing.assert_allclose(
    tiles.matmul(x, quantised), expected, rtol=1e-4, atol=1e-4
  )
  turned = qarray.QArray(quantised.values, quantised.scale[..., ::-1])
  assert not np.allclose(tiles.matmul(x, turned), expected, atol=0.1)


@pytest.mark.parametrize('form', FORMS)
def test_fused_columns_keep_their_scales(form):
  w = weight(8, 12)
  moved = fused.interleave(w, (4, 8), 2)
  quantised = fused.interleave(qarray.quantise(w, form), (4, 8), 2)
  np.testing.assert_array_equal(
    qarray.dequantised(quantised),
    qarray.dequantised(qarray.quantise(moved, form)),
  )


@pytest.mark.parametrize('form', FORMS)
def test_experts_have_scales_of_their_own(form):
  num_experts, width, ff_width = 4, 16, 24
  gate_up, down = (
    jax.tree.map(jnp.asarray, qarray.quantise(weight(*shape, seed=i), form))
    for i, shape in enumerate(
      ((num_experts, width, 2 * ff_width), (num_experts, ff_width, width))
    )
  )
  x = jax.random.normal(jax.random.key(0), (9, width))
  keys = jax.random.split(jax.random.key(1))
  choice = experts.Choice(
    jax.random.randint(keys[0], (9, 2), 0, num_experts),
    jax.random.uniform(keys[1], (9, 2)),
  )
  expected = experts.mix_reference(
    x, choice, qarray.dequantised(gate_up), qarray.dequantised(down)
  )
  top = float(jnp.max(jnp.abs(expected)))
  got = experts.mix(x, choice, gate_up, down)
  np.testing.assert_allclose(got, expected, atol=1e-5 * top)
  swapped = qarray.QArray(down.values, down.scale[::-1])
  wrong = experts.mix(x, choice, gate_up, swapped)
  assert not np.allclose(wrong, expected, atol=1e-2 * top)


def test_gated_mlp_takes_both():
  w = [weight(16, 48, seed=1), weight(24, 16, seed=2)]
  x = jax.random.normal(jax.random.key(0), (5, 16))
  small = [jax.tree.map(jnp.asarray, qarray.quantise(one, 'int8')) for one in w]
  plain = [qarray.dequantised(one) for one in small]
  expected = layers.gated_mlp(x, *plain)
  np.testing.assert_allclose(
    layers.gated_mlp(x, *small),
    expected,
    atol=1e-5 * float(jnp.max(jnp.abs(expected))),
  )


@pytest.mark.parametrize('form', FORMS)
def test_rows_in_bfloat16_meet_a_scale_in_float32(form):
  quantised = jax.tree.map(jnp.asarray, qarray.quantise(weight(32, 64), form))
  rows = jnp.eye(32, dtype=jnp.bfloat16)  # Each of them gives a row of it.
  got = tiles.matmul(rows, quantised)
  want = qarray.dequantised(quantised).astype(jnp.bfloat16)
  assert got.dtype == jnp.bfloat16
  np.testing.assert_array_equal(got, want)
  # Negative control: a scale of eight bits gives others.
  rounded = quantised.scale.astype(jnp.bfloat16).astype(jnp.float32)
  less = tiles.matmul(rows, qarray.QArray(quantised.values, rounded))
  assert np.mean(np.asarray(less != want)) > 0.1
