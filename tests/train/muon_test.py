# SPDX-License-Identifier: MIT
"""Muon, matrix by matrix, against an oracle in numpy."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jspec import errors
from jspec.nn import moe
from jspec.train import muon, optim

SIZES = {'num_experts': 3, 'width': 8, 'ff_width': 6, 'shared_ff_width': 6}
CONFIG = optim.OptimConfig(
  name='muon',
  learning_rate=0.1,
  schedule='constant',
  warmup_steps=0,
  weight_decay=0.0,
  clip_norm=1e9,
)
SHAPES = {
  'layers.down': (2, 6, 8),
  'layers.kv': (2, 8, 8),
  'layer.experts_down': (2, 3, 6, 8),
  'layer.experts_gate_up': (3, 8, 12),
  'layer.qkv': (8, 16),
  'layer.out': (8, 8),
  'fusion.proj': (24, 8),
  'layers.attn_norm': (2, 8),
  'head': (8, 32),
  'router': (8, 3),
  'gate': (3,),
  'confidence.proj': (8, 1),
}
# Columns of the parts of one matrix; whatever is not named is one.
PARTS = {
  'layers.kv': (4, 4),
  'layer.experts_gate_up': (6, 6),
  'layer.qkv': (8, 4, 4),
}
MATRICES = (
  'layers.down',
  'layers.kv',
  'layer.experts_down',
  'layer.experts_gate_up',
  'layer.qkv',
  'layer.out',
  'fusion.proj',
)


def random(seed):
  rng = np.random.default_rng(seed)
  return {
    name: jnp.asarray(rng.normal(size=shape), jnp.float32)
    for name, shape in SHAPES.items()
  }


def one_matrix(gradient):
  """The first step of Muon: Newton-Schulz in numpy, scaled to AdamW's size."""
  x = np.asarray(gradient, np.float64)
  tall = x.shape[0] > x.shape[1]
  x = x.T if tall else x
  x = x / np.linalg.norm(x)
  a, b, c = 3.4445, -4.7750, 2.0315
  for _ in range(5):
    square = x @ x.T
    x = a * x + (b * square + c * square @ square) @ x
  x = x.T if tall else x
  return -CONFIG.learning_rate * 0.2 * np.sqrt(max(x.shape)) * x


def step(config, params, grads):
  transform = optim.optimizer(config, 10)
  update = jax.jit(transform.update)
  return update(grads, transform.init(params), params)[0]


def wanted(name, gradient):
  flat = np.asarray(gradient).reshape(-1, *gradient.shape[-2:])
  cuts = np.cumsum(PARTS.get(name, ()))[:-1]
  rows = [
    np.concatenate([one_matrix(p) for p in np.split(m, cuts, axis=1)], axis=1)
    for m in flat
  ]
  return np.stack(rows).reshape(gradient.shape)


@pytest.fixture(scope='module')
def updates():
  return random(1), step(CONFIG, random(0), random(1))


@pytest.mark.slow
def test_every_matrix_of_a_stack_and_of_a_fusion_goes_alone(updates):
  grads, got = updates
  assert set(got) == set(SHAPES)
  for name in MATRICES:
    np.testing.assert_allclose(
      got[name], wanted(name, grads[name]), atol=2e-4, err_msg=name
    )
  # The oracle tells a fused weight from its parts.
  whole = np.stack([one_matrix(m) for m in grads['layers.kv']])
  assert np.abs(whole - got['layers.kv']).max() > 1e-2


def test_what_is_no_matrix_goes_as_with_adamw(updates):
  grads, got = updates
  plain = step(dataclasses.replace(CONFIG, name='adamw'), random(0), grads)
  for name in SHAPES:
    same = np.array_equal(got[name], plain[name])
    assert same == (name not in MATRICES), name


def test_steps_are_as_large_as_those_of_adamw(updates):
  _, got = updates
  for name in MATRICES:
    size = np.sqrt(np.mean(np.square(got[name]))) / CONFIG.learning_rate
    assert 0.1 < size < 0.3, name


def test_decay_reaches_matrices_and_spares_the_rest():
  zeros = jax.tree.map(jnp.zeros_like, random(1))
  config = dataclasses.replace(CONFIG, weight_decay=0.5)
  got = step(config, random(0), zeros)
  for name, value in random(0).items():
    spared = value.ndim == 1 or re.search(config.no_decay, name) is not None
    decayed = np.zeros_like(value) if spared else -0.05 * value
    np.testing.assert_allclose(got[name], decayed, atol=1e-6, err_msg=name)


def test_experts_and_router_of_a_layer_are_told_apart():
  config = moe.MoeConfig(top_k=2, **SIZES)
  arrays = {n: jnp.zeros(s) for n, s in moe.array_shapes(config).items()}
  matrices = {n: muon.is_matrix(n, x, CONFIG.others) for n, x in arrays.items()}
  assert {n for n, is_one in matrices.items() if is_one} == {
    'experts_gate_up',
    'experts_down',
    'shared_gate_up',
    'shared_down',
  }
  assert muon.ends('shared_gate_up', arrays) == [6]


def test_fused_queries_of_unknown_width_are_refused():
  transform = optim.optimizer(CONFIG, 10)
  with pytest.raises(errors.UserError, match='no a.out beside it'):
    transform.init({'a.qkv': jnp.zeros((4, 8))})


def test_two_steps_are_those_of_optax_on_plain_matrices():
  params = {'a': random(0)['fusion.proj'], 'b': random(0)['layer.out']}
  grads = {'a': random(1)['fusion.proj'], 'b': random(1)['layer.out']}
  theirs = optax.contrib.muon(CONFIG.learning_rate, consistent_rms=0.2)
  ours = optim.optimizer(CONFIG, 10)
  found = []
  for transform in (ours, theirs):
    state, at = transform.init(params), params
    for _ in range(2):
      moves, state = transform.update(grads, state, at)
      at = optax.apply_updates(at, moves)
    found.append(at)
  for name in params:
    np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-6)
