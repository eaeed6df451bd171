# SPDX-License-Identifier: MIT
"""A loop over layers that reads stacked experts where they lie, as for TPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jspec.kernels import choose
from jspec.nn import experts, moe, qarray, stack
from jspec.targets import sharding
from jspec.testing import toy

CONFIG = moe.MoeConfig(width=6, num_experts=8, top_k=3, ff_width=4)
NUM_LAYERS = 3
# Two devices, so that no Pallas kernel is chosen, which a CPU has not.
TPU = ('tpu', 2)


@pytest.fixture
def stacked():
  rng = np.random.default_rng(0)

  def make(config=CONFIG, dtype=jnp.float32):
    shapes = moe.array_shapes(config).items()
    arrays = {
      name: jnp.asarray(rng.normal(size=(NUM_LAYERS, *shape)), dtype)
      for name, shape in shapes
    }
    return moe.Moe(config, arrays)

  return make


def rows(dtype=jnp.float32):
  rng = np.random.default_rng(1)
  return jnp.asarray(rng.normal(size=(2, 5, CONFIG.width)), dtype)


def loop(layers, x):
  """What every layer gives, by number."""

  def body(_, index):
    return None, stack.apply(layers, index, lambda layer, x: layer(x), x)

  return jax.lax.scan(body, None, jnp.arange(NUM_LAYERS))[1]


def traced(layers, x, platform=TPU):
  with choose.compiling_for(*platform):
    # Anew, or JAX would give what it traced for another platform.
    return str(jax.make_jaxpr(lambda *given: loop(*given))(layers, x))


@jax.jit
def reference(layers, x):
  """The same, every expert on every row."""
  found = []
  for i in range(NUM_LAYERS):
    layer = stack.layer(layers, i)
    choice = moe.route(x, layer.router[...], CONFIG)
    arrays = layer.experts_gate_up[...], layer.experts_down[...]
    found.append(experts.mix_reference(x, choice, *arrays))
  return jnp.stack(found)


@pytest.mark.slow
def test_every_layer_reads_its_own_experts(stacked):
  layers, x = stacked(), rows()
  with jax.default_matmul_precision('highest'):
    with choose.compiling_for(*TPU):
      got = jax.jit(lambda layers, x: loop(layers, x))(layers, x)
    np.testing.assert_allclose(got, reference(layers, x), rtol=1e-4, atol=1e-4)


def test_no_layer_s_experts_are_cut_out_but_on_a_tpu_alone(stacked):
  layers, x = stacked(), rows()
  every = f'[{NUM_LAYERS * CONFIG.num_experts},6,8]'
  assert every in traced(layers, x)
  assert every not in traced(layers, x, ('cpu', 2))
  # Of eight bits they are: the type is changed of one layer, not of all.
  for name in ('experts_gate_up', 'experts_down'):
    param = getattr(layers, name)
    param.set_value(qarray.quantise(param[...], 'int8'))
  assert every not in traced(layers, x)


def test_experts_on_a_mesh_stay_whole_too(stacked):
  layers, x = stacked(), rows()
  want = loop(layers, x)
  layers.mesh = Mesh(np.array(jax.devices()[:2]), ('model',))
  layers.axis = 'model'
  with choose.compiling_for(*TPU):
    got = jax.jit(lambda layers, x: loop(layers, x))(layers, x)
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_bfloat16_asks_for_no_precision_of_more_passes(stacked):
  with jax.default_matmul_precision('highest'):
    narrow = traced(stacked(dtype=jnp.bfloat16), rows(jnp.bfloat16))
    wide = traced(stacked(), rows())

  def precisions(text):
    # Of the products by expert; the router's are in float32.
    parts = text.split('= ragged_dot_general[')[1:]
    return {'HIGHEST' in part.split(']')[0] + part[:600] for part in parts}

  assert precisions(narrow) == {False}
  assert precisions(wide) == {True}


@pytest.mark.slow
def test_a_target_placed_on_a_mesh_gives_the_same():
  sizes = dict(num_heads=16, num_kv_heads=8, ff_width=64, vocab_size=64)
  experts = moe.MoeConfig(width=32, num_experts=8, top_k=3, ff_width=12)
  target = toy.target(experts=experts, dense_layers=(1,), **sizes)
  tokens = jnp.asarray(toy.prompts(2, 9))
  positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)

  def run(target):
    return target.encode(tokens, positions, jnp.ones_like(tokens), (0, 1))

  want = jax.jit(run)(target)
  mesh = sharding.checked(Mesh(np.array(jax.devices()[:8]), (sharding.AXIS,)))
  with choose.compiling_for('tpu', 8):
    got = jax.jit(run)(sharding.place(target, mesh))
  for one, other in zip(got, want, strict=True):
    np.testing.assert_allclose(one, other, atol=2e-5)
