# SPDX-License-Identifier: MIT
"""Routing by hand, and sorted experts against every expert on every row."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.nn import experts, layers, moe

CONFIG = moe.MoeConfig(
  width=6,
  num_experts=5,
  top_k=2,
  ff_width=4,
  shared_ff_width=3,
  score='sigmoid',
  has_bias=True,
  scale=2.5,
)


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _arrays(config=CONFIG, seed=0):
  rng = np.random.default_rng(seed)
  return {
    name: jnp.asarray(rng.normal(size=shape), jnp.float32)
    for name, shape in moe.array_shapes(config).items()
  }


def _rows(*shape, seed=1):
  rng = np.random.default_rng(seed)
  return jnp.asarray(rng.normal(size=(*shape, CONFIG.width)), jnp.float32)


def test_route_follows_the_formula_worked_out_by_hand():
  # A row of ones along one axis, so that the router's row is the logits.
  logits = np.array([0.0, 2.0, -1.0, 1.0, 0.5], np.float32)
  router = jnp.zeros((6, 5)).at[0].set(jnp.asarray(logits))
  x = jnp.zeros((1, 6)).at[0, 0].set(1.0)
  bias = jnp.asarray([0.0, -1.0, 0.9, 0.0, 0.0])
  scores = 1 / (1 + np.exp(-logits))
  plain = moe.route(x, router, CONFIG)
  np.testing.assert_array_equal(plain.experts, [[1, 3]])
  kept = scores[[1, 3]]
  np.testing.assert_allclose(
    plain.weights[0], 2.5 * kept / kept.sum(), rtol=1e-6
  )
  # The bias lifts expert 2 and drowns 1; the weights are scores without it.
  biased = moe.route(x, router, CONFIG, bias)
  np.testing.assert_array_equal(biased.experts, [[2, 3]])
  kept = scores[[2, 3]]
  np.testing.assert_allclose(
    biased.weights[0], 2.5 * kept / kept.sum(), rtol=1e-6
  )
  raw = dataclasses.replace(CONFIG, renormalise=False)
  np.testing.assert_allclose(
    moe.route(x, router, raw, bias).weights[0], 2.5 * kept, rtol=1e-6
  )


def test_renormalised_softmax_is_a_softmax_over_the_chosen():
  config = dataclasses.replace(
    CONFIG, score='softmax', has_bias=False, scale=1.0
  )
  x, router = _rows(7), _arrays()['router']
  choice = moe.route(x, router, config)
  logits = np.sort(np.asarray(x @ router), axis=-1)[:, :-3:-1]
  want = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  np.testing.assert_allclose(choice.weights, want, rtol=1e-5)
  raw = dataclasses.replace(config, renormalise=False)
  assert np.all(np.sum(moe.route(x, router, raw).weights, axis=-1) < 1)


@pytest.mark.few(1)
@pytest.mark.parametrize('shape', [(1,), (9,), (2, 3, 4)])
def test_sorted_experts_equal_every_expert_on_every_row(shape):
  arrays, x = _arrays(), _rows(*shape)
  choice = moe.route(x, arrays['router'], CONFIG, arrays['expert_bias'])
  weights = (arrays['experts_gate_up'], arrays['experts_down'])
  # Whatever the sharing of rows: some expert has none, or one has all.
  crowded = choice._replace(experts=jnp.zeros_like(choice.experts) + 3)
  for taken in (choice, crowded):
    np.testing.assert_allclose(
      experts.mix(x, taken, *weights),
      experts.mix_reference(x, taken, *weights),
      rtol=1e-5,
      atol=1e-5,
    )


def test_gradients_equal_the_references():
  arrays, x = _arrays(), _rows(9)

  def loss(mix, x, router, gate_up, down):
    choice = moe.route(x, router, CONFIG, arrays['expert_bias'])
    return jnp.sum(jnp.sin(0.1 * mix(x, choice, gate_up, down)))

  names = ('router', 'experts_gate_up', 'experts_down')
  operands = (x, *(arrays[name] for name in names))
  grads = [
    jax.grad(loss, argnums=(1, 2, 3, 4))(mix, *operands)
    for mix in (experts.mix, experts.mix_reference)
  ]
  for got, want in zip(*grads, strict=True):
    assert np.abs(want).max() > 1e-2
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_scale_leaves_the_shared_expert_alone():
  arrays, x = _arrays(), _rows(8)
  shared = layers.gated_mlp(x, arrays['shared_gate_up'], arrays['shared_down'])
  routed = []
  for scale in (1.0, 4.0):
    layer = moe.Moe(dataclasses.replace(CONFIG, scale=scale), arrays)
    routed.append(layer(x) - shared)
  np.testing.assert_allclose(4 * routed[0], routed[1], rtol=1e-4, atol=1e-4)
  bare = dataclasses.replace(CONFIG, shared_ff_width=0)
  kept = {name: arrays[name] for name in moe.array_shapes(bare)}
  np.testing.assert_allclose(
    moe.Moe(bare, kept)(x), routed[0] * 2.5, rtol=1e-4, atol=1e-4
  )


@pytest.mark.slow
def test_every_array_but_the_bias_gets_a_gradient():
  layer = moe.Moe(CONFIG, _arrays())
  graph, params = nnx.split(layer)
  x = _rows(30)

  def loss(params):
    return jnp.sum(jnp.square(nnx.merge(graph, params)(x)))

  grads = dict(nnx.to_flat_state(jax.grad(loss)(params)))
  size = {path[-1]: np.abs(g[...]).max() for path, g in grads.items()}
  assert size.pop('expert_bias') == 0
  assert set(size) == set(moe.array_shapes(CONFIG)) - {'expert_bias'}
  assert min(size.values()) > 1e-3


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'top_k': 6}, 'top_k=6: expected 1..5'),
    ({'top_k': 0}, 'top_k=0'),
    ({'score': 'relu'}, "score='relu'"),
  ],
)
def test_config_refuses_what_cannot_be(changes, message):
  with pytest.raises(errors.UserError, match=message):
    dataclasses.replace(CONFIG, **changes)


def test_biases_and_clamped_gates_follow_the_reference():
  config = dataclasses.replace(
    CONFIG, has_biases=True, activation='clamped_swiglu', shared_ff_width=0
  )
  arrays = _arrays(config)
  x = 3 * _rows(7)  # So that gates reach the clamp.
  layer = moe.Moe(config, arrays)
  choice = moe.route(
    x, arrays['router'], config, arrays['expert_bias'], arrays['router_bias']
  )
  named = [
    arrays['experts_' + name]
    for name in ('gate_up', 'down', 'gate_up_bias', 'down_bias')
  ]
  want = experts.mix_reference(x, choice, *named, activation='clamped_swiglu')
  np.testing.assert_allclose(layer(x), want, rtol=1e-4, atol=1e-3)
  for wrong in (
    experts.mix_reference(x, choice, *named),
    experts.mix_reference(x, choice, *named[:2], activation='clamped_swiglu'),
  ):
    assert np.abs(layer(x) - wrong).max() > 0.1
  # By hand, one gate above the clamp and one up-projection below it.
  got = layers.clamped_swiglu(jnp.array([9.0, 1.0]), jnp.array([1.0, -8.0]))
  want = [7 * 2 / (1 + np.exp(-7 * 1.702)), -6 / (1 + np.exp(-1.702))]
  np.testing.assert_allclose(got, want, rtol=1e-6)
