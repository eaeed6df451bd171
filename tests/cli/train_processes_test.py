# SPDX-License-Identifier: MIT
"""`jspec train` in several processes, each of which reads its own shards."""

import json
import re

import numpy as np
import pytest

from jspec import metrics
from tests import starting, tiny_model
from tests.cli.bad_input import CONFIG
from tests.train import tiny

pytestmark = pytest.mark.slow

NUM_DEVICES, TIMEOUT_S = 4, 400


def run(folder, target, num_processes):
  """Losses, and what each process printed."""
  workdir = folder / f'run{num_processes}'
  words = [
    'train',
    '--config',
    f'{starting.ROOT / CONFIG}:target={target},smoke',
    f'--workdir={workdir}',
    f'--config.data.answers={folder / "answers.jsonl"}',
    '--config.data.mode=online',
    f'--config.eval.prompts={folder / "prompts.jsonl"}',
    '--config.drafter.options.mask_token_id=3',
    '--config.drafter.options.num_taps=1',
    '--config.data.num_rows=8',
    '--config.optim.warmup_steps=1',
    '--config.num_steps=4',
    '--config.eval.every=2',
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
  tiny.write_answers(tmp_path / 'answers.jsonl')
  prompts = [{'prompt': 'w5 w9 w30'}, {'prompt': 'w8 w9'}]
  (tmp_path / 'prompts.jsonl').write_text(
    ''.join(json.dumps(prompt) + '\n' for prompt in prompts)
  )
  alone, _ = run(tmp_path, target, 1)
  rows, texts = run(tmp_path, target, 2)
  losses = [[row['loss'] for row in some] for some in (alone, rows)]
  np.testing.assert_allclose(*losses, rtol=1e-5)
  decoded = [row for row in rows if 'evaluate/num_answers' in row]
  assert [row['step'] for row in decoded] == [2, 4]
  assert all(row['evaluate/num_failures'] == 0 for row in decoded)
  assert re.search(r'step \d is best', texts[0]) and not texts[1]
