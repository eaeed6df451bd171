# SPDX-License-Identifier: MIT
"""`jspec train` in several processes, each of which reads its own shards."""

import re

import numpy as np
import pytest

from jspec import metrics
from tests import starting, tiny_model
from tests.cli import short_run

pytestmark = pytest.mark.slow

NUM_DEVICES, TIMEOUT_S = 4, 400


def run(folder, target, num_processes):
  """Losses, and what each process printed."""
  workdir = folder / f'run{num_processes}'
  words = [
    *short_run.words(folder, target, workdir),
    '--config.data.mode=online',
    '--config.mesh.preset=fsdp',
  ]
  if num_processes > 1:
    words += [f'--coordinator={starting.coordinator()}']
    words += [f'--num-processes={num_processes}']
  started = starting.start(
    'jspec.cli.main',
    [
      words + [f'--process-id={process}'] * (num_processes > 1)
      for process in range(num_processes)
    ],
    NUM_DEVICES // num_processes,
  )
  texts, codes = starting.ended(started, TIMEOUT_S)
  assert codes == [0] * num_processes, '\n'.join(texts)
  return metrics.read(workdir / 'metrics.jsonl'), texts


def test_two_processes_read_what_one_reads(tmp_path):
  target = tiny_model.write(tmp_path / 'tiny')
  alone, _ = run(tmp_path, target, 1)
  rows, texts = run(tmp_path, target, 2)
  losses = [[row['loss'] for row in some] for some in (alone, rows)]
  np.testing.assert_allclose(*losses, rtol=1e-5)
  decoded = [row for row in rows if 'evaluate/num_answers' in row]
  assert [row['step'] for row in decoded] == [2, 4]
  assert all(row['evaluate/num_failures'] == 0 for row in decoded)
  # One of them speaks for all.
  assert re.search(r'step \d is best', texts[0])
  assert 'train: ' not in texts[1] and 'data: ' not in texts[1]
