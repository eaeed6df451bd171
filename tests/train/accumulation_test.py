# SPDX-License-Identifier: MIT
"""However a batch is cut, its gradient is that of the whole."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jspec import errors
from jspec.train import accumulation, build, build_plain, step
from tests.train import tiny

ROWS, LENGTH = 8, 20
KEY = jax.random.key(0)
BLOCK = dict(
  num_layers=1, taps=(0, 2), mask_token_id=3, block_size=4, num_draft_tokens=3
)
# Everything is an anchor, so that nothing depends on what is drawn.
CASES = {
  'dflash': (
    build.dflash,
    dict(
      **BLOCK,
      loss=dict(
        num_anchors=LENGTH, mix=dict(weights='dpace', ce=1.0, e2e_tv=0.5)
      ),
    ),
  ),
  'eagle3': (
    build_plain.eagle3,
    dict(taps=(0, 1, 2), loss=dict(ttt_length=2, ce=0.3)),
  ),
  'mtp': (
    build_plain.mtp,
    dict(
      taps=(3,),
      loss=dict(
        ttt_length=2, lk=0.7, e2e_direct=0.2, e2e_weighted=0.1, on_policy=False
      ),
    ),
  ),
}


def rows():
  """Answers of unequal length; row 5 has none."""
  rng = np.random.default_rng(0)
  lengths = np.array([20, 3, 7, 12, 5, 0, 18, 9])
  at = np.broadcast_to(np.arange(LENGTH), (ROWS, LENGTH))
  return {
    'tokens': rng.integers(4, 60, (ROWS, LENGTH)).astype(np.int32),
    'positions': at.astype(np.int32),
    'segments': (at < np.maximum(lengths, 2)[:, None]).astype(np.int32),
    'is_answer': ((at >= 2) & (at < lengths[:, None])).astype(np.int32),
    'taps': rng.normal(size=(ROWS, LENGTH, 4, 16)).astype(np.float32),
  }


@functools.cache
def one_step(name, num_micro_batches):
  """Parameters before and after a step of gradient descent; metrics."""
  make, options = CASES[name]
  loaded = tiny.loaded()
  drafter = make(loaded, options, None, jax.random.key(0))
  parts = step.split(drafter)
  optimizer = optax.sgd(1.0)
  layers = step.captured(drafter, loaded.model.num_layers)
  batch = rows()
  batch['taps'] = batch['taps'][:, :, list(layers)]
  run = jax.jit(
    functools.partial(
      step.train_step,
      parts.merge,
      step.stored_taps(tuple(drafter.taps), 3 if drafter.needs_last else None),
      optimizer,
      None,
      num_micro_batches=num_micro_batches,
    )
  )
  state = step.init(parts, optimizer, jax.random.key(1))
  after, metrics = run(state, parts.frozen, (), batch)
  return state.params, after.params, jax.device_get(metrics)


@pytest.mark.slow
@pytest.mark.parametrize('num', [2, 8])
@pytest.mark.parametrize('name', CASES)
def test_step_is_the_same_however_rows_are_cut(name, num):
  before, whole, metrics = one_step(name, 1)
  _, cut, of_cut = one_step(name, num)
  for path, value in whole.items():
    np.testing.assert_allclose(cut[path], value, atol=1e-5, err_msg=path)
  assert any(np.abs(whole[p] - before[p]).max() > 1e-3 for p in before)
  assert set(metrics) == set(of_cut)
  assert not [key for key in metrics if 'part' in key]
  for key in ('loss', 'grad_norm', 'num_blocks', 'tokens_per_round'):
    np.testing.assert_allclose(of_cut[key], metrics[key], rtol=1e-5)


def mean_loss(params, batch, key):
  """Mean over real entries, told as a part."""
  del key
  weight = jnp.sum(batch['real'])
  value = jnp.sum(params['w'] ** 2 * batch['x'] * batch['real'])
  value /= jnp.maximum(weight, 1e-6)
  found = {'num_blocks': weight, 'mean.part': value, 'mean.part_weight': weight}
  return value, found


def test_mean_of_the_means_of_portions_would_be_another():
  batch = {
    'x': jnp.array([[1.0, 2.0], [3.0, 4.0]]),
    'real': jnp.array([[1.0, 1.0], [1.0, 0.0]]),
  }
  params = {'w': jnp.float32(1.0)}
  loss, _, grads = accumulation.value_and_grad(mean_loss, 2, params, batch, KEY)
  assert loss == pytest.approx(2.0) and grads['w'] == pytest.approx(4.0)
  cut = accumulation.portions(batch, 2)
  naive = jnp.mean(jax.vmap(lambda x: mean_loss(params, x, KEY)[0])(cut))
  assert naive == pytest.approx(2.25)


@pytest.mark.parametrize('depends', [False, True])
def test_weights_that_come_from_masks_cost_no_forward_pass(depends):
  def costly(params, batch, key):
    hidden = jnp.sin(batch['x'] @ jnp.ones((2, 2)) * params['w'])
    real = batch['real'] * (hidden > 0) if depends else batch['real']
    return mean_loss(params, {**batch, 'x': hidden, 'real': real}, key)

  batch = {'x': jnp.ones((2, 2)), 'real': jnp.ones((2, 2))}
  inputs = (accumulation.portions(batch, 2), jax.random.split(KEY, 2))
  compiled = jax.jit(
    lambda params: accumulation.total_weights(costly, params, inputs)
  )
  text = compiled.lower({'w': jnp.float32(1.0)}).compile().as_text()
  assert ('sine(' in text) == depends


def test_loss_that_is_no_sum_of_means_is_refused():
  def loss(params, batch, key):
    return params['w'] * jnp.sum(batch['x']), {}

  with pytest.raises(errors.UserError, match='num_micro_batches to 1'):
    accumulation.value_and_grad(
      loss, 2, {'w': jnp.float32(1)}, {'x': jnp.ones((2, 1))}, KEY
    )
