# SPDX-License-Identifier: MIT
"""Runs that are killed, resumed, refused, and that learn."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from safetensors import numpy as safetensors_numpy

from jspec import errors
from jspec import metrics as metrics_lib
from tests.train import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
  """A folder with an uninterrupted run."""
  folder = tmp_path_factory.mktemp('whole')
  tiny.train(folder)
  return folder


def exported(folder):
  return safetensors_numpy.load_file(folder / 'export' / 'model.safetensors')


def steps_of(folder):
  rows = metrics_lib.read(folder / 'metrics.jsonl')
  return [row['step'] for row in rows], [row['loss'] for row in rows]


def arrays_of(folder, step):
  """Everything the checkpoint of a step holds, through its own reader."""
  import orbax.checkpoint as ocp

  path = (folder / 'checkpoints' / str(step) / 'state').absolute()
  return ocp.StandardCheckpointer().restore(path)


@pytest.mark.slow
def test_killed_run_equals_uninterrupted_when_resumed(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  shutil.copytree(whole / 'taps', tmp_path / 'taps')
  killed = subprocess.run(
    [sys.executable, '-m', 'tests.train.tiny', str(tmp_path), '5'],
    cwd=ROOT,
    env=dict(os.environ),
    check=False,
    capture_output=True,
  )
  assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
  assert steps_of(tmp_path / 'run')[0] == [1, 2, 3, 4, 5]
  messages = []
  tiny.train(tmp_path, on_message=messages.append)
  # The save of step 4 may not have come to its end.
  assert re.search(r'resumed from step [24]\n', '\n'.join([*messages, '']))
  ours, theirs = arrays_of(tmp_path / 'run', 8), arrays_of(whole / 'run', 8)
  assert set(ours) == set(theirs)
  for name, value in theirs.items():
    np.testing.assert_array_equal(ours[name], value, err_msg=name)
  assert steps_of(tmp_path / 'run') == steps_of(whole / 'run')
  for name, value in exported(whole / 'run').items():
    np.testing.assert_array_equal(exported(tmp_path / 'run')[name], value)


@pytest.mark.slow
def test_a_run_goes_on_from_the_drafter_of_another(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  tiny.train(
    tmp_path,
    drafter__init=str(whole / 'run'),
    data__store=str(whole / 'taps'),
    optim__learning_rate=1e-6,
  )
  trained = exported(whole / 'run')
  for name, value in exported(tmp_path / 'run').items():
    got, want = value.astype(np.float32), trained[name].astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=2**-6, atol=1e-4, err_msg=name)


@pytest.mark.slow
def test_what_an_evaluation_finds_has_names_of_its_own(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  weights = []

  def evaluate(drafter):
    weights.append(np.asarray(drafter.block.layers.out[...]))
    return {'tokens_per_round': 1.5, 'accepted_per_round': [0.5, None]}

  tiny.train(
    tmp_path, data__store=str(whole / 'taps'), num_steps=4, evaluate=evaluate
  )
  rows = metrics_lib.read(tmp_path / 'run' / 'metrics.jsonl')
  named = [{k for k in row if k.startswith('evaluate/')} for row in rows]
  names = {'evaluate/tokens_per_round', 'evaluate/accepted_per_round'}
  assert named == [set(), names, set(), names]
  assert not any('held_out/evaluate' in name for row in rows for name in row)
  # It gets the weights of now, and decides nothing.
  assert len(weights) == 2 and not np.array_equal(*weights)
  (tmp_path / 'bare').mkdir()
  shutil.copy(whole / 'answers.jsonl', tmp_path / 'bare')
  tiny.train(tmp_path / 'bare', data__store=str(whole / 'taps'), num_steps=4)
  assert steps_of(tmp_path / 'run') == steps_of(tmp_path / 'bare' / 'run')


def test_finished_run_changes_nothing_when_started_again(whole):
  before = steps_of(whole / 'run')
  tiny.train(whole)
  assert steps_of(whole / 'run') == before


@pytest.mark.parametrize(
  'changes, key',
  [({'seed': 1}, 'config.seed'), ({'optim__clip_norm': 2.0}, 'clip_norm')],
)
def test_other_config_is_refused_when_folder_is_used(whole, changes, key):
  with pytest.raises(errors.UserError, match=key):
    tiny.train(whole, **changes)


def test_folder_with_other_files_is_refused(tmp_path):
  (tmp_path / 'run').mkdir()
  (tmp_path / 'run' / 'thesis.txt').write_text('mine')
  with pytest.raises(errors.UserError, match='not empty'):
    tiny.train(tmp_path)
  assert (tmp_path / 'run' / 'thesis.txt').read_text() == 'mine'


def test_other_documents_are_refused_when_store_is_used(whole, tmp_path):
  tiny.write_answers(tmp_path / 'answers.jsonl', count=30)
  with pytest.raises(errors.UserError, match='other documents'):
    tiny.train(tmp_path, data__store=str(whole / 'taps'))


def test_other_dtype_is_refused_when_store_is_used(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  with pytest.raises(errors.UserError, match='bfloat16 but data.store_dtype'):
    tiny.train(
      tmp_path, data__store=str(whole / 'taps'), data__store_dtype='float32'
    )


@pytest.mark.slow
def test_taps_of_the_step_train_like_stored_ones(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  messages = []
  out = tiny.train(
    tmp_path,
    data__mode='online',
    time_limit_s=0.01,
    on_message=messages.append,
  )
  # The time limit ended the run, whole and exported.
  assert any('time limit after 1 steps' in message for message in messages)
  assert (out / 'model.safetensors').exists()
  _, online = steps_of(tmp_path / 'run')
  _, stored = steps_of(whole / 'run')
  # The store rounds to bfloat16.
  np.testing.assert_allclose(online, stored[:1], rtol=1e-2)


@pytest.mark.slow
def test_ten_examples_are_learnt_by_heart(tmp_path):
  tiny.write_answers(tmp_path / 'answers.jsonl', count=12)
  rows = []
  tiny.train(
    tmp_path,
    num_steps=400,
    eval__every=400,
    optim__learning_rate=3e-2,
    on_progress=lambda step, row: rows.append(row),
  )
  first, last = rows[0]['loss'], rows[-1]['loss']
  assert last < 0.2 * first
  assert rows[-1]['tokens_per_round'] > 2.5


@pytest.mark.slow
def test_run_stops_when_nothing_is_finite(whole, tmp_path):
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  with pytest.raises(errors.UserError, match='not finite'):
    tiny.train(
      tmp_path,
      data__store=str(whole / 'taps'),
      optim__learning_rate=1e38,
      max_skipped=2,
      num_steps=20,
    )


def test_run_from_before_a_key_existed_goes_on(whole, tmp_path):
  shutil.copytree(whole / 'run', tmp_path / 'run')
  shutil.copy(whole / 'answers.jsonl', tmp_path)
  path = tmp_path / 'run' / 'config.json'
  saved = json.loads(path.read_text())
  for section, key in (('optim', 'schedule'), ('data', 'domains')):
    del saved['config'][section][key]
  changes = {
    'data__answers': str(whole / 'answers.jsonl'),
    'data__store': str(whole / 'taps'),
  }
  path.write_text(json.dumps(saved))
  tiny.train(tmp_path, **changes)
  path.write_text(json.dumps(saved))
  with pytest.raises(errors.UserError, match='schedule .cosine there, linear'):
    tiny.train(tmp_path, optim__schedule='linear', **changes)
