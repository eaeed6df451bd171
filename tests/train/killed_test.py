# SPDX-License-Identifier: MIT
"""Runs that are killed go on as if nothing had been."""

import os
import random
import shutil
import signal
import time

import pytest

from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory
from jspec.train import settings
from tests.train import forks, tiny

KILLS = int(os.environ.get('JSPEC_TEST_KILLS', '12'))
# All that a checkpoint may have to hold, over two portions of a batch, and a
# save in the background at every step.
CHANGES = {
  'num_steps': 4 * KILLS + 4,
  'eval__every': 1,
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
  return [(row['step'], row['loss'], row[measured]) for row in rows]


def wait_for_rows(run, folder, count):
  """Returns once the run has written so many rows, or has ended."""
  path = folder / 'run' / 'metrics.jsonl'
  deadline = time.monotonic() + 120
  while run.is_running() and time.monotonic() < deadline:
    if path.exists() and path.read_bytes().count(b'\n') >= count:
      return
    time.sleep(0.001)


def check_folder(folder):
  """Newest and best can be loaded; returns the newest, 0 if there is none."""
  if not (folder / 'run' / inventory.FOLDER).exists():
    return 0
  entries = inventory.read(folder / 'run', settings.BEST)
  # All are whole, also what was about to be deleted.
  for entry in entries:
    assert not inventory.why_unreadable(folder / 'run', entry.step)
  return entries[-1].step if entries else 0


@pytest.fixture
def run(tmp_path):
  made = forks.Forks(tmp_path / 'programs')
  yield made
  made.close()


@pytest.mark.slow
def test_killed_at_random_moments_nothing_but_the_running_step_is_lost(
  tmp_path, run
):
  whole, killed = tmp_path / 'whole', tmp_path / 'killed'
  for folder in (whole, killed):
    folder.mkdir()
    tiny.write_answers(folder / 'answers.jsonl')
  run.start(whole, CHANGES)
  assert run.wait() == 0, (whole / 'output.txt').read_text()
  shutil.copytree(whole / 'taps', killed / 'taps')
  rng = random.Random(0)
  num_rows = newest = 0
  for _ in range(KILLS):
    run.start(killed, CHANGES)
    # Some are killed before their first step, most while they save.
    num_more = rng.choice((0, 1, 1, 2, 3))
    if num_more:
      wait_for_rows(run, killed, num_rows + num_more)
    time.sleep(rng.uniform(0, 0.15 if num_more else 2))
    run.kill()
    assert run.wait() == -signal.SIGKILL, (killed / 'output.txt').read_text()
    before, newest = newest, check_folder(killed)
    assert newest >= before
    num_rows = len(losses(killed))
    # The step whose checkpoint was being written, and no other.
    assert num_rows - newest <= 1
  run.start(killed, CHANGES)
  assert run.wait() == 0, (killed / 'output.txt').read_text()
  said = (killed / 'output.txt').read_text()
  assert said.count('resumed from step') >= KILLS // 2
  assert 'cannot be read' not in said
  assert losses(killed) == losses(whole)
  ours, theirs = (
    inventory.read(folder / 'run', settings.BEST) for folder in (killed, whole)
  )
  assert [(e.step, e.score) for e in ours] == [
    (e.step, e.score) for e in theirs
  ]
