# SPDX-License-Identifier: MIT
"""`jspec train` whole: decoding along the way, a trace, where the time went."""

import pytest

from jspec import metrics as metrics_lib
from jspec.cli import main
from tests.cli import short_run
from tests.cli.bad_input import CONFIG


@pytest.mark.slow
def test_training_decodes_along_the_way(target, tmp_path, decodes, capsys):
  words = [
    *short_run.words(tmp_path, target, tmp_path / 'run'),
    '--config.profile.start=3',
    '--config.profile.num_steps=1',
    '--config.tensorboard=true',
  ]
  assert main.main(words) == 0
  rows = metrics_lib.read(tmp_path / 'run' / 'metrics.jsonl')
  measured = [row for row in rows if 'evaluate/num_answers' in row]
  assert [row['step'] for row in measured] == [2, 4]
  for row in measured:
    assert row['evaluate/num_answers'] == 2  # As smoke says.
    assert row['evaluate/num_identical'] + row['evaluate/num_ties'] == 2
    assert row['evaluate/num_failures'] == 0
    assert row['evaluate/tokens_per_round'] >= 1
  assert list((tmp_path / 'run' / 'profile').rglob('*.xplane.pb'))
  out = capsys.readouterr().out
  # Steps have lines where there is no terminal.
  assert 'step 1  ' in out and 'train: goodput' in out
  assert 'a trace of steps 3 to 3' in out


def test_prompts_are_refused_before_the_target_is_loaded(
  refused, target, tmp_path
):
  words = ['train', '--config', f'{CONFIG}:target=nowhere,smoke']
  words += ['--workdir', tmp_path / 'run']
  said = refused(*words, '--config.eval.prompts=absent.jsonl')
  assert 'absent.jsonl' in said


def test_a_schedule_is_refused_before_the_target_is_loaded(refused, tmp_path):
  words = ['train', '--config', f'{CONFIG}:target=nowhere,smoke']
  words += ['--workdir', tmp_path / 'run']
  said = refused(*words, '--config.optim.warmup_steps=20')
  assert said.startswith('optim.warmup_steps is 20 but num_steps is 20: ')
