# SPDX-License-Identifier: MIT
"""A target of eight bits on the mesh of a training run gives the same taps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.nn import qarray
from jspec.targets import quantised
from jspec.testing import toy
from jspec.train import layout, placing
from tests.train import spread_steps

SIZES = dict(num_heads=8, num_kv_heads=4, ff_width=64, vocab_size=64)


def encoded(model, devices=None):
  """States of whole sequences, traced for a mesh."""
  graphdef, state = nnx.split(model)

  def run(state, tokens):
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    target = nnx.merge(graphdef, state)
    return target.encode(tokens, positions, jnp.ones_like(tokens), (1,))

  tokens = jax.random.randint(jax.random.key(0), (8, 8), 0, 64)
  if devices is not None:
    together = placing.together(model, devices)
    run = layout.within(devices, run, together)
    tokens = placing.batch({'ids': np.asarray(tokens)}, devices)['ids']
  return [np.asarray(x) for x in jax.jit(run)(state, tokens)]


@pytest.mark.slow
@pytest.mark.parametrize('form', qarray.FORMS)
@pytest.mark.parametrize('preset', ['fsdp', 'fsdp_tp'])
def test_states_are_those_of_one_device(preset, form):
  whole = toy.target(weights=form, cache_form='int8', **SIZES)
  devices = spread_steps.mesh_of(preset=preset)
  placed = placing.target(whole, devices)
  assert quantised.form_of(placed) == form
  for got, want in zip(encoded(placed, devices), encoded(whole), strict=True):
    # A cached number at the edge between two steps may tip.
    np.testing.assert_allclose(got, want, atol=5e-2)
    assert np.median(np.abs(got - want)) < 1e-4
  down = placed.layers.down[...]
  assert down.values.addressable_shards[0].data.size < down.values.size
  assert down.scale.sharding.is_fully_replicated


def test_bfloat16_leaves_eight_bits_as_they_are():
  model = toy.target(weights='fp8')
  found = placing.cast(model, 'bfloat16')
  assert quantised.form_of(found) == 'fp8'
  assert found.layers.down[...].scale.dtype == jnp.float32
  assert found.embedding[...].dtype == jnp.bfloat16
