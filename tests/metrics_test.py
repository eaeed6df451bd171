# SPDX-License-Identifier: MIT
"""One row a step, whatever stops and resumes there were."""

import numpy as np

from jspec import metrics as metrics_lib


def write(folder, steps, **settings):
  metrics = metrics_lib.Metrics(folder, print_every=1000, **settings)
  for step in steps:
    metrics.write(step, {'loss': np.float32(step)})
  metrics.close()


def test_no_row_is_doubled_when_resumed(tmp_path):
  write(tmp_path, [1, 2, 3, 4, 5])
  write(tmp_path, [4, 5, 6], resume_step=3)
  write(tmp_path, [6, 7], resume_step=5)
  rows = metrics_lib.read(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [1, 2, 3, 4, 5, 6, 7]
  assert [row['loss'] for row in rows] == [1, 2, 3, 4, 5, 6, 7]


def test_torn_last_line_is_left_out(tmp_path):
  write(tmp_path, [1, 2])
  with open(tmp_path / 'metrics.jsonl', 'a') as file:
    file.write('{"step": 3, "lo')
  write(tmp_path, [3], resume_step=2)
  rows = metrics_lib.read(tmp_path / 'metrics.jsonl')
  assert [row['step'] for row in rows] == [1, 2, 3]


def test_not_finite_is_written_as_text(tmp_path):
  metrics = metrics_lib.Metrics(tmp_path)
  metrics.write(1, {'loss': float('nan'), 'many': np.array([1.0, np.inf])})
  (row,) = metrics_lib.read(tmp_path / 'metrics.jsonl')
  assert row == {'step': 1, 'loss': 'nan', 'many': [1.0, 'inf']}


def test_tensorboard_writes_events(tmp_path):
  write(tmp_path, [1], tensorboard=True)
  assert list((tmp_path / 'tensorboard').glob('events*'))
