# SPDX-License-Identifier: MIT
"""The parts of a step make it up, and the benchmark reports all it measures."""

import json

import pytest

from jspec import config as config_lib
from jspec import errors
from jspec.bench import matmuls, train_parts, train_setup, train_step
from jspec.train import settings
from tests.train import tiny


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  folder = tmp_path_factory.mktemp('bench')
  tiny.write_answers(folder / 'answers.jsonl')
  config = config_lib.build(
    settings.TrainConfig, tiny.config(folder, data__mode='online')
  )
  return config, tiny.loaded()


@pytest.mark.slow
def test_matmuls_of_the_parts_are_those_of_the_step(made):
  config, loaded = made
  setup = train_setup.prepared(config, loaded)
  batch = next(setup.batches)
  setup.batches.close()
  stepper = train_setup.Stepper(config, setup)
  whole = matmuls.find(
    stepper.function, setup.state, setup.parts.frozen, setup.target, batch
  )
  programs = train_parts.programs(config, setup, batch)
  found = {
    name: matmuls.find(function, *args)
    for name, (function, *args) in programs.items()
  }
  summed = sum(
    (found[name].counts for name in train_step.SUMMED[1:]),
    start=found['target'].counts,
  )
  assert whole.counts == summed
  in_parts = sum(found[name].uncounted for name in train_step.SUMMED)
  assert whole.uncounted == in_parts
  # Both ways hold the way forward, and the loss is a part of them.
  forward, both = found['forward'].flop, found['forward_backward'].flop
  assert 0 < forward < both and 0 < found['loss'].flop < both


@pytest.mark.slow
def test_every_figure_is_reported(made):
  config, loaded = made
  seen = []
  result = train_step.run(
    config,
    loaded,
    num_steps=2,
    repeats=2,
    on_progress=lambda *counts: seen.append(counts),
  )
  assert seen == [(i, 4) for i in range(1, 5)]
  assert json.loads(json.dumps(result)) == result
  for entry in result['times'].values():
    assert entry['seconds'] > 0 and entry['floor_s'] >= 0
  step_s = result['times']['step']['seconds']
  assert result['tokens_per_s'] * step_s == pytest.approx(result['num_tokens'])
  assert result['data']['ratio'] > 0
  sizes = [entry['vocab_size'] for entry in result['loss_memory']]
  assert sizes == [tiny.VOCAB // 4, tiny.VOCAB]
  text = train_step.table(result)
  assert 'tokens/s' in text and 'optimizer' in text and 'pipeline' in text


def test_store_is_refused(made, tmp_path):
  config = config_lib.build(settings.TrainConfig, tiny.config(tmp_path))
  with pytest.raises(errors.UserError, match='data.mode=online'):
    train_step.run(config, made[1], num_steps=1, repeats=1)
