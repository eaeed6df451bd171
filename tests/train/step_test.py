# SPDX-License-Identifier: MIT
"""A step that is not finite changes nothing but the count."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.train import optim, step

DECAY = 0.3
OPTIM = optim.OptimConfig(warmup_steps=1, learning_rate=0.1)


class Scale(nnx.Module):
  """loss = mean(w * taps), with one parameter and one frozen array."""

  def __init__(self):
    self.w = nnx.Param(jnp.linspace(1, 2, 6).reshape(3, 2))
    self.frozen = nnx.Variable(jnp.ones((3, 2)))

  def loss(self, batch, key):
    del key
    loss = jnp.mean(jnp.square(self.w[...]) * self.frozen[...]) * jnp.mean(
      batch.taps
    )
    return loss, {'tokens_per_round': loss}


def batch(value):
  tokens = np.zeros((1, 4), np.int32)
  return {
    'tokens': tokens,
    'positions': tokens,
    'segments': tokens,
    'is_answer': tokens.astype(bool),
    'taps': np.full((1, 4, 1, 2), value, np.float32),
  }


@pytest.fixture(scope='module', params=['adamw', 'muon'])
def run_step(request):
  parts = step.split(Scale())
  chosen = dataclasses.replace(OPTIM, name=request.param)
  optimizer = optim.optimizer(chosen, 10)
  jitted = jax.jit(
    functools.partial(
      step.train_step,
      parts.merge,
      step.stored_taps((0,), None),
      optimizer,
      None,
      ema_decay=DECAY,
    )
  )
  state = step.init(parts, optimizer, jax.random.key(0), has_average=True)
  return state, lambda s, b: jitted(s, parts.frozen, (), b)


def test_only_parameters_are_trained():
  assert list(step.split(Scale()).params) == ['w']


@pytest.mark.parametrize('bad', [np.nan, np.inf])
def test_step_is_skipped_when_not_finite(run_step, bad):
  state, one = run_step
  state, _ = one(state, batch(1.0))
  skipped, metrics = one(state, batch(bad))
  assert int(metrics['skipped']) == 1
  assert int(skipped.num_skipped) == 1
  assert int(skipped.step) == 2
  jax.tree.map(
    np.testing.assert_array_equal,
    (skipped.params, skipped.opt_state, skipped.average),
    (state.params, state.opt_state, state.average),
  )
  after, metrics = one(skipped, batch(1.0))
  assert int(metrics['skipped']) == 0
  assert not np.array_equal(after.params['w'], skipped.params['w'])


def test_average_follows_the_steps_that_were_made(run_step):
  state, one = run_step
  mean = np.asarray(state.params['w'])
  for number, value in enumerate([1.0, np.nan, 2.0, 1.0]):
    state, _ = one(state, batch(value))
    if np.isfinite(value):
      made = number + 1 - int(number > 1)
      decay = min(DECAY, (1 + made) / (10 + made))
      mean = decay * mean + (1 - decay) * np.asarray(state.params['w'])
    np.testing.assert_allclose(state.average['w'], mean, rtol=1e-5)
  assert np.abs(mean - state.params['w']).max() > 1e-3
  np.testing.assert_array_equal(state.result['w'], state.average['w'])


def test_state_without_an_average_names_what_it_always_did():
  optimizer = optim.optimizer(OPTIM, 10)
  state = step.init(step.split(Scale()), optimizer, jax.random.key(0))
  names = {
    str(path[0]) for path, _ in jax.tree_util.tree_leaves_with_path(state)
  }
  assert names == {'.params', '.opt_state', '.step', '.num_skipped', '.key'}
  assert state.result is state.params


def test_decay_spares_norms_and_vectors():
  params = {
    'layers.attn_norm': jnp.ones((2, 4)),
    'layers.out': jnp.ones((2, 4)),
    'gate': jnp.ones((4,)),
  }
  assert optim.decays(OPTIM, params) == {
    'layers.attn_norm': False,
    'layers.out': True,
    'gate': False,
  }


def test_schedule_warms_up_then_falls_to_the_floor():
  config = optim.OptimConfig(warmup_steps=4, learning_rate=1.0, min_ratio=0.1)
  rates = [float(optim.schedule(config, 20)(i)) for i in range(21)]
  assert rates[0] < rates[2] < rates[4] == max(rates)
  assert rates[-1] == pytest.approx(0.1)


def test_warmup_longer_than_the_run_is_refused():
  with pytest.raises(errors.UserError, match='warmup_steps'):
    optim.schedule(optim.OptimConfig(warmup_steps=20), 20)
