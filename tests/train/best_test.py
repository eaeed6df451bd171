# SPDX-License-Identifier: MIT
"""The best step is the one that drafts best, not the one of least loss."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec import metrics as metrics_lib
from tests.train import tiny


class Scripted(nnx.Module):
  """One weight that goes up by 1 a step; its acceptance peaks on the way."""

  taps = (0,)
  needs_last = False

  def __init__(self):
    self.weight = nnx.Param(jnp.zeros((1,)))

  def calibrate(self, batch):
    del batch

  def loss(self, batch, key):
    del batch, key
    weight = self.weight[...][0]
    accepted = 3 - jnp.abs(weight - 3)
    return 10 - weight, {'tokens_per_round': accepted, 'weight': weight}


def build(loaded, options, draft_token_ids, key):
  """As a config names it."""
  del loaded, options, draft_token_ids, key
  return Scripted()


def save(folder, drafter, **_):
  """As a config names it."""
  weight = float(drafter.weight[...][0])
  (folder / 'weight.json').write_text(json.dumps(weight))


OPTIM = {
  'learning_rate': 1.0,
  'warmup_steps': 0,
  'min_ratio': 1.0,
  'weight_decay': 0.0,
}


@pytest.mark.slow
def test_best_is_where_most_is_accepted_though_the_loss_falls_on(tmp_path):
  messages = []
  out = tiny.train(
    tmp_path,
    num_steps=6,
    drafter={'build': f'{__name__}:build', 'save': f'{__name__}:save'},
    data__mode='online',
    eval__every=1,
    optim=OPTIM,
    on_message=messages.append,
  )
  rows = metrics_lib.read(tmp_path / 'run' / 'metrics.jsonl')
  losses = [row['held_out/loss'] for row in rows]
  accepted = [row['held_out/tokens_per_round'] for row in rows]
  np.testing.assert_allclose(losses, [9, 8, 7, 6, 5, 4], atol=1e-4)
  np.testing.assert_allclose(accepted, [1, 2, 3, 2, 1, 0], atol=1e-4)
  assert any('step 3 is best, tokens_per_round 3.000' in x for x in messages)
  assert abs(json.loads((out / 'weight.json').read_text()) - 3) < 1e-4


def test_average_is_what_is_evaluated_and_exported(tmp_path):
  out = tiny.train(
    tmp_path,
    num_steps=3,
    drafter={'build': f'{__name__}:build', 'save': f'{__name__}:save'},
    data__mode='online',
    eval__every=1,
    optim={**OPTIM, 'ema_decay': 0.2},
  )
  # Decays 2/11, then 0.2 as (1 + n) / (10 + n) exceeds it; weights 1, 2, 3.
  means = [9 / 11]
  for decay, weight in ((0.2, 2), (0.2, 3)):
    means.append(decay * means[-1] + (1 - decay) * weight)
  rows = metrics_lib.read(tmp_path / 'run' / 'metrics.jsonl')
  measured = [row['held_out/weight'] for row in rows]
  np.testing.assert_allclose(measured, means, atol=1e-4)
  assert abs(json.loads((out / 'weight.json').read_text()) - means[-1]) < 1e-4


class Broken(Scripted):
  """Its loss is never finite."""

  def loss(self, batch, key):
    loss, metrics = super().loss(batch, key)
    return loss * jnp.nan, metrics


def build_broken(*_):
  """As a config names it."""
  return Broken()


def test_short_run_that_only_skips_stops_and_saves_nothing(tmp_path):
  with pytest.raises(errors.UserError, match='not one of 3 steps'):
    tiny.train(
      tmp_path,
      num_steps=3,
      max_skipped=20,
      drafter={'build': f'{__name__}:build_broken'},
      data__mode='online',
      eval__every=3,
      optim=OPTIM,
    )
  assert not list((tmp_path / 'run' / 'checkpoints').iterdir())
  assert not (tmp_path / 'run' / 'export').exists()
