# SPDX-License-Identifier: MIT
"""One row a step, whatever stops and resumes there were."""

import struct

import numpy as np
from tensorboardX.proto import event_pb2

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


def scalars(folder):
  """What TensorBoard reads, as (name, step) -> value: of TFRecord files."""
  found = {}
  for path in sorted(folder.glob('events*')):
    data, at = path.read_bytes(), 0
    while at < len(data):
      (size,) = struct.unpack_from('<Q', data, at)
      event = event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
      at += 12 + size + 4
      for value in event.summary.value:
        found[value.tag, event.step] = value.simple_value
  return found


def test_tensorboard_has_the_numbers_of_rows(tmp_path):
  metrics = metrics_lib.Metrics(tmp_path, tensorboard=True)
  metrics.write(1, {'loss': np.float32(2.5)})
  metrics.write(
    2,
    {
      'loss': np.float32(1.5),
      'held_out/accuracy': np.array([0.5, 0.25]),
      'evaluate/num_identical': 4,
      'goodput_seconds': {'steps': 3.0},
      'written_at': 'now',
    },
  )
  metrics.close()
  assert scalars(tmp_path / 'tensorboard') == {
    ('loss', 1): 2.5,
    ('loss', 2): 1.5,
    ('held_out/accuracy/1', 2): 0.5,
    ('held_out/accuracy/2', 2): 0.25,
    ('evaluate/num_identical', 2): 4,
    ('goodput_seconds/steps', 2): 3.0,
  }


def lines(folder, print_every):
  shown = []
  metrics = metrics_lib.Metrics(
    folder, print_every=print_every, show=shown.append
  )
  for step in range(1, 7):
    extra = {'held_out/loss': 1.0} if step == 5 else {}
    metrics.write(step, {'loss': 2.0, 'data/wait_seconds': 0.0, **extra})
  return [line.split()[1] for line in shown]


def test_lines_come_now_and_then_and_with_every_evaluation(tmp_path):
  assert lines(tmp_path, 3) == ['3', '5', '6']
  assert lines(tmp_path, 0) == ['5']
