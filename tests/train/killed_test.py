# SPDX-License-Identifier: MIT
"""Runs that are killed go on as if nothing had been."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory
from jspec.train import settings
from tests.train import tiny

ROOT = pathlib.Path(__file__).resolve().parents[2]
# All that a checkpoint may have to hold, over two portions of a batch.
CHANGES = {
  'num_steps': 12,
  'eval__every': 2,
  'data__num_rows': 16,
  'optim': {
    'name': 'muon',
    'schedule': 'wsd',
    'warmup_steps': 2,
    'learning_rate': 3e-3,
    'ema_decay': 0.9,
    'num_micro_batches': 2,
  },
}


def losses(folder):
  rows = metrics_lib.read(folder / 'run' / 'metrics.jsonl')
  measured = f'held_out/{settings.BEST}'
  return [(row['step'], row['loss'], row.get(measured)) for row in rows]


def start(folder):
  """A run in a process of its own; its output goes to a file."""
  with open(folder / 'output.txt', 'ab') as output:
    return subprocess.Popen(
      [sys.executable, '-m', 'tests.train.tiny', str(folder), '-1']
      + [json.dumps(CHANGES)],
      cwd=ROOT,
      env={
        **os.environ,
        # One device compiles faster, and what is compiled stays.
        'XLA_FLAGS': '',
        'JAX_COMPILATION_CACHE_DIR': str(folder.parent / 'programs'),
        'JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS': '0',
        'JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES': '-1',
      },
      stdout=output,
      stderr=subprocess.STDOUT,
    )


def wait_for_rows(process, folder, count):
  """Returns once the run has written so many rows, or has ended."""
  path = folder / 'run' / 'metrics.jsonl'
  deadline = time.monotonic() + 300
  while process.poll() is None and time.monotonic() < deadline:
    if path.exists() and path.read_bytes().count(b'\n') >= count:
      return
    time.sleep(0.002)


@pytest.mark.slow
def test_killed_at_any_moment_nothing_but_the_running_steps_is_lost(tmp_path):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  for folder in (whole, killed):
    folder.mkdir()
    tiny.write_answers(folder / 'answers.jsonl')
  assert start(whole).wait(timeout=600) == 0
  shutil.copytree(whole / 'taps', killed / 'taps')
  rng = random.Random(0)
  for first in (2, 4, 6, 8):
    process = start(killed)
    wait_for_rows(process, killed, first)
    time.sleep(rng.uniform(0, 0.1))
    process.kill()
    assert process.wait() == -signal.SIGKILL
    entries = inventory.read(killed / 'run', settings.BEST)
    for entry in filter(None, [inventory.best(entries), *entries[-1:]]):
      assert not inventory.why_unreadable(killed / 'run', entry.step)
    rows = losses(killed)
    latest = entries[-1].step if entries else 0
    # A checkpoint every two steps, and one that was perhaps being written.
    assert rows[-1][0] - latest <= 2 * CHANGES['eval__every']
  assert start(killed).wait(timeout=600) == 0
  assert (killed / 'output.txt').read_text().count('resumed from step') >= 2
  assert losses(killed) == losses(whole)
  ours, theirs = (
    inventory.read(folder / 'run', settings.BEST) for folder in (killed, whole)
  )
  assert [(e.step, e.score) for e in ours] == [
    (e.step, e.score) for e in theirs
  ]
