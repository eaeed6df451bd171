# SPDX-License-Identifier: MIT
"""Learning rates, against the formulas in plain numpy."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.train import optim

NUM_STEPS, WARMUP, PEAK, FLOOR = 40, 8, 2.0, 0.1


def rates(**changes):
  config = optim.OptimConfig(
    **{
      'learning_rate': PEAK,
      'warmup_steps': WARMUP,
      'min_ratio': FLOOR,
      **changes,
    }
  )
  rate = optim.schedule(config, NUM_STEPS)
  return np.asarray(rate(jnp.arange(NUM_STEPS + 5))) * np.ones(NUM_STEPS + 5)


def decayed(style, x):
  """The share of the peak at x of a decay."""
  return {
    'linear': 1 - (1 - FLOOR) * x,
    'cosine': FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * x)) / 2,
    'sqrt': 1 - (1 - FLOOR) * math.sqrt(x),
    'exponential': FLOOR**x,
  }[style]


def share(name, style, step):
  """The share of the peak behind warm-up, by the definition."""
  x = min((step - WARMUP) / (NUM_STEPS - WARMUP), 1)
  if name in ('linear', 'cosine'):
    return decayed(name, x)
  if name == 'inverse_sqrt':
    return max(math.sqrt(WARMUP / step), FLOOR)
  if name == 'wsd':
    start = NUM_STEPS - 10
    return decayed(style, min(max(step - start, 0) / 10, 1))
  return 1.0


@pytest.mark.parametrize(
  'name, style',
  [
    ('constant', 'linear'),
    ('linear', 'linear'),
    ('cosine', 'linear'),
    ('inverse_sqrt', 'linear'),
    ('wsd', 'linear'),
    ('wsd', 'cosine'),
    ('wsd', 'sqrt'),
    ('wsd', 'exponential'),
  ],
)
def test_rates_are_those_of_the_definition(name, style):
  got = rates(schedule=name, decay_style=style, decay_share=0.25)
  wanted = [
    PEAK * share(name, style, step) for step in range(WARMUP, NUM_STEPS + 5)
  ]
  np.testing.assert_allclose(got[WARMUP:], wanted, rtol=1e-5)
  # Up in equal strides, and never above the peak.
  np.testing.assert_allclose(
    np.diff(got[: WARMUP + 1]), (PEAK - PEAK / WARMUP) / WARMUP, rtol=1e-4
  )
  assert got.max() == pytest.approx(PEAK)


@pytest.mark.parametrize('name', ['constant', 'linear', 'inverse_sqrt', 'wsd'])
def test_no_warmup_starts_at_the_peak(name):
  assert rates(schedule=name, warmup_steps=0)[0] == pytest.approx(PEAK)


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'schedule': 'wsdd'}, 'optim.schedule is wsdd.*constant, .*wsd'),
    ({'decay_style': 'steep'}, 'optim.decay_style is steep.*sqrt, exp'),
    ({'name': 'sgd'}, 'optim.name is sgd: choose one of adamw, muon'),
    ({'decay_share': 0.0}, 'decay_share'),
    ({'min_ratio': -0.1}, 'min_ratio'),
    ({'momentum': 1.0}, 'momentum'),
    ({'others': '('}, 'optim.others is no regular expression'),
    ({'decay_style': 'exponential', 'min_ratio': 0.0}, 'exponential'),
    ({'warmup_steps': NUM_STEPS}, 'warm up for fewer'),
    ({'schedule': 'wsd', 'decay_share': 0.9}, 'more than the run'),
  ],
)
def test_what_makes_no_schedule_is_refused(changes, said):
  with pytest.raises(errors.UserError, match=said):
    rates(**changes)
