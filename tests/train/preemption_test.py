# SPDX-License-Identifier: MIT
"""A SIGTERM saves the step in hand; a resume that was asked for is held to."""

import os
import shutil
import signal
import threading

import numpy as np
import pytest

from jspec import errors
from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory
from jspec.train import preemption, settings
from tests.train import tiny


def losses(folder):
  rows = metrics_lib.read(folder / 'run' / 'metrics.jsonl')
  measured = f'held_out/{settings.BEST}'
  return [(row['step'], row['loss'], row.get(measured)) for row in rows]


@pytest.mark.slow
def test_sigterm_saves_the_step_in_hand_and_the_run_goes_on(tmp_path):
  tiny.train(tmp_path, name='whole', eval__every=4)
  messages = []

  def on_progress(step, row):
    del row
    if step == 2:
      os.kill(os.getpid(), signal.SIGTERM)

  before = signal.getsignal(signal.SIGTERM)
  with pytest.raises(SystemExit) as caught:
    tiny.train(
      tmp_path,
      on_progress=on_progress,
      on_message=messages.append,
      eval__every=4,
    )
  assert caught.value.code == 143
  assert signal.getsignal(signal.SIGTERM) is before
  (entry,) = inventory.read(tmp_path / 'run', settings.BEST)
  # The step that was under way when the row of step 2 was written.
  assert entry.step == 3 and np.isnan(entry.score)
  assert f'step {entry.step} is saved' in messages[-1]
  tiny.train(
    tmp_path, on_message=messages.append, eval__every=4, must_resume=True
  )
  assert any('resumed from step 3' in message for message in messages)
  shutil.move(tmp_path / 'whole', tmp_path / 'other' / 'run')
  assert losses(tmp_path) == losses(tmp_path / 'other')


def test_resume_is_refused_where_there_is_nothing_to_resume(tmp_path):
  for name in ('absent', 'run'):
    (tmp_path / 'run' / 'checkpoints').mkdir(parents=True, exist_ok=True)
    with pytest.raises(errors.UserError, match='no (checkpoint|folder)'):
      tiny.train(tmp_path, name=name, must_resume=True)
  assert not (tmp_path / 'absent').exists()


def test_nothing_is_watched_outside_the_main_thread():
  before, found = signal.getsignal(signal.SIGTERM), []

  def other():
    watch = preemption.Watch()
    watch.start()
    watch.stop()
    found.append(watch.is_asked)

  thread = threading.Thread(target=other)
  thread.start()
  thread.join()
  assert found == [False]
  assert signal.getsignal(signal.SIGTERM) is before
