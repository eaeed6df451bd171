# SPDX-License-Identifier: MIT
"""Every family in eight bits: as close as stated, and by the right scales.

Logits are compared by the norm of what they are off over the norm of those in
float32, on a few dozen tokens. The models are tiny and random, so their
products average over little: trained ones are closer (see README.md).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors, tree
from jspec.cache import forms
from jspec.nn import qarray
from jspec.targets import architecture, families, quantised, transformer
from tests.targets import goldens, hy3_test

NAMES = (*goldens.NAMES, 'hy3')
# Of the weights. Experts that are chosen otherwise add to it.
BOUNDS = {'int8': 0.04, 'fp8': 0.16}
CACHE_BOUNDS = {'bf16': 0.02, 'int8': 0.04, 'fp8': 0.16}
SPARSE = ('qwen3_moe', 'gpt_oss', 'deepseek_v3', 'hy3')
SPARSE_FACTOR = 2


def random_hy3():
  """There is no golden of Hy3: random weights of its architecture."""
  config = families.find(hy3_test.FIELDS, 'hy3').config(hy3_test.FIELDS, 'hy3')
  rng, arrays = np.random.default_rng(0), {}
  for name, shape in architecture.array_shapes(config).items():
    made = rng.normal(size=shape)
    if name.endswith('norm'):
      made = 1 + 0.1 * made
    elif len(shape) > 1 and name != 'embedding':
      made /= np.sqrt(shape[-2])
    arrays[name] = made.astype(np.float32)
  return config, arrays


@functools.cache
def family(name):
  return random_hy3() if name == 'hy3' else goldens.arrays(name)


def make(name, weights=None, change=lambda name, array: array, **named):
  config, arrays = family(name)
  small = quantised.arrays(arrays, weights)
  small = {key: change(key, array) for key, array in small.items()}
  return transformer.Transformer(config, small, **named)


def meaning(_, array):
  """The weight that one of eight bits stands for; others as they are."""
  is_small = isinstance(array, qarray.QArray)
  return np.asarray(qarray.dequantised(array)) if is_small else array


def logits(target):
  rng = np.random.default_rng(0)
  ids = rng.integers(3, min(target.vocab_size, 250), (2, 24))
  return np.asarray(goldens.run(target, ids)[0])


@functools.cache
def plain(name):
  return logits(make(name))


def off(got, want):
  return np.linalg.norm(got - want) / np.linalg.norm(want)


def bound_of(name, form, bounds):
  return bounds[form] * (SPARSE_FACTOR if name in SPARSE else 1)


@pytest.mark.slow
@pytest.mark.parametrize('form', qarray.FORMS)
@pytest.mark.parametrize('name', NAMES)
def test_logits_are_within_the_bound_and_by_the_right_scales(name, form):
  target = make(name, form)
  assert quantised.form_of(target) == form
  got, bound = logits(target), bound_of(name, form, BOUNDS)
  assert 1e-4 < off(got, plain(name)) < bound
  # The same as with the weights that they stand for, to rounding.
  meant = make(name, form, meaning)
  assert quantised.form_of(meant) is None
  assert off(got, logits(meant)) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize('form', qarray.FORMS)
@pytest.mark.parametrize('name', ['llama', 'deepseek_v3', 'gpt_oss'])
def test_scales_of_other_columns_are_out_of_bounds(name, form):
  """Negative control: one matrix of all whose scales are in another order."""
  for array in ('qkv', 'down', 'kv_up', 'experts_down'):
    if array not in family(name)[1]:
      continue

    def turn(key, found, array=array):
      if key != array:
        return found
      # Doubled for every other one: random weights have scales much alike.
      factor = 1 + np.arange(found.scale.size).reshape(found.scale.shape) % 2
      return qarray.QArray(found.values, found.scale * factor.astype('f4'))

    got = logits(make(name, form, turn))
    assert off(got, plain(name)) > bound_of(name, form, BOUNDS), array


@pytest.mark.slow
@pytest.mark.parametrize('form', forms.NAMES)
@pytest.mark.parametrize('name', NAMES)
def test_a_cache_of_fewer_bits_is_within_the_bound(name, form):
  got = logits(make(name, cache_form=form))
  assert 1e-5 < off(got, plain(name)) < bound_of(name, form, CACHE_BOUNDS)


@pytest.mark.few(1)
@pytest.mark.parametrize('form', forms.NAMES)
def test_what_else_a_round_scores_changes_no_bit(form):
  """Neither logits nor kept rows of a node depend on the nodes behind it."""
  tokens = np.random.default_rng(0).integers(3, 250, (2, 12))
  target = make('llama', cache_form=form)

  def run(tokens):
    logits, cache = goldens.feed(target, goldens.empty_cache(target, 2), tokens)
    # Pages of four rows, in which the last ones are not among the compared.
    kept = [
      np.asarray(x)[:, [0, 1, 8, 9]] for x in jax.tree.leaves(cache.pages)
    ]
    return [np.asarray(logits[:, :8]), *kept]

  other = tokens.copy()
  other[:, 8:] = tokens[:, 8:] % 240 + 5
  for first, second in zip(run(tokens), run(other), strict=True):
    np.testing.assert_array_equal(first, second)
  # Negative control: the nodes themselves.
  other[:, 7] = tokens[:, 7] % 240 + 5
  assert not np.array_equal(run(tokens)[0], run(other)[0])


@pytest.mark.few(1)
@pytest.mark.parametrize('form', forms.NAMES)
def test_a_round_sees_its_own_rows_as_the_next_one_will(form, monkeypatch):
  """Nodes scored together give what they give one chunk after the other."""
  tokens = np.random.default_rng(0).integers(3, 250, (2, 12))

  def compare():
    target = make('llama', cache_form=form)
    cache = goldens.empty_cache(target, 2)
    together, _ = goldens.feed(target, cache, tokens)
    _, cache = goldens.feed(target, cache, tokens[:, :7])
    apart, _ = goldens.feed(target, cache, tokens[:, 7:])
    return np.abs(together[:, 7:] - apart).mean()

  rounded = compare()
  # Negative control: nodes that see each other in float32.
  monkeypatch.setattr(forms, 'as_kept', lambda rows, form: rows)
  jax.clear_caches()
  unrounded = compare()
  assert unrounded > 1e-4
  # Not 0: at the edge of a step a value may tip by the order of sums.
  assert rounded < 0.1 * unrounded


def test_pages_of_another_form_are_refused():
  target = make('llama', cache_form='int8')
  cache = goldens.empty_cache(make('llama'), 1)
  tokens = jnp.zeros((1, 2), jnp.int32)
  with pytest.raises(ValueError, match="cache_form='int8': make them by it"):
    goldens.score(target, cache, tokens, tree.chain_parents(1, 2))


def test_what_is_not_a_matrix_of_a_layer_stays():
  config, arrays = family('gpt_oss')
  made = quantised.arrays(arrays, 'int8')
  small = {name for name, x in made.items() if isinstance(x, qarray.QArray)}
  assert small == {'qkv', 'out', 'experts_gate_up', 'experts_down'}
  assert all(made[name] is arrays[name] for name in made.keys() - small)
  assert made['experts_down'].scale.shape == (
    config.num_layers,
    config.experts.num_experts,
    1,
    config.width,
  )
  assert quantised.arrays(arrays, None) == arrays


def test_unknown_form_is_refused():
  assert quantised.checked(None) is None
  with pytest.raises(errors.UserError, match="weights='int4': expected one of"):
    quantised.checked('int4')
