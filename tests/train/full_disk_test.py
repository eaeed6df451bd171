# SPDX-License-Identifier: MIT
"""A run on a disk that is full for a while, on a real file system."""

import shutil
import subprocess

import pytest

from jspec import errors
from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory
from jspec.train import settings
from tests.train import background_test, tiny


@pytest.fixture
def small_disk(tmp_path):
  """A folder on a file system of 4 MB."""
  folder = tmp_path / 'disk'
  folder.mkdir()
  mounted = subprocess.run(
    ['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(folder)],
    capture_output=True,
    check=False,
  )
  if mounted.returncode:
    pytest.skip('needs the right to mount a tmpfs')
  yield folder
  subprocess.run(['umount', '-l', str(folder)], check=True)


def fill(path, spare):
  """Leaves so many bytes of the file system free."""
  free = shutil.disk_usage(path.parent).free
  path.write_bytes(bytes(max(0, free - spare)))


# Writes of a save that failed end after orbax has closed their event loop.
@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('spare', [0, 4096, 16384, 65536])
@pytest.mark.slow
def test_run_on_a_full_disk_says_so_and_goes_on_when_there_is_room(
  small_disk, spare
):
  changes = {**background_test.PLAIN, 'num_steps': 12, 'data__mode': 'online'}

  def on_progress(step, row):
    del row
    if step == 4:
      fill(small_disk / 'ballast', spare)

  with pytest.raises(errors.UserError, match='make room there') as caught:
    tiny.train(small_disk, on_progress=on_progress, **changes)
  assert '\n' not in str(caught.value)
  entries = inventory.read(small_disk / 'run', settings.BEST)
  assert entries[-1].step >= 3
  for entry in entries:
    assert not inventory.why_unreadable(small_disk / 'run', entry.step)
  (small_disk / 'ballast').unlink()
  messages = []
  tiny.train(small_disk, on_message=messages.append, **changes)
  assert any('resumed from step' in text for text in messages)
  rows = metrics_lib.read(small_disk / 'run' / 'metrics.jsonl')
  assert [row['step'] for row in rows] == list(range(1, 13))
  # The loss of this drafter falls by its one weight.
  assert [round(row['loss'], 3) for row in rows] == list(range(10, -2, -1))
