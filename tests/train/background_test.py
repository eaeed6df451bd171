# SPDX-License-Identifier: MIT
"""What fails beside the training thread stops the run, with its cause."""

import errno
import threading
import time

import orbax.checkpoint as ocp
import pytest

from jspec import errors
from jspec import metrics as metrics_lib
from jspec.checkpoints import inventory
from jspec.data import features
from jspec.train import settings
from tests.train import best_test, tiny


class Plain(best_test.Scripted):
  """A drafter that compiles in no time and drafts nothing."""

  num_draft_tokens = 1

  def init_state(self, *_):
    raise AssertionError('nothing is drafted here')

  propose = commit = init_state


def build(*_):
  """As a config names it."""
  return Plain()


PLAIN = {
  'drafter': {
    'build': f'{__name__}:build',
    'save': 'tests.train.best_test:save',
  },
  'optim': best_test.OPTIM,
  'eval__every': 1,
  'num_steps': 6,
}


@pytest.fixture(scope='module')
def captured(tmp_path_factory):
  """A folder with answers and their taps."""
  folder = tmp_path_factory.mktemp('captured')
  tiny.train(folder, name='first', **{**PLAIN, 'num_steps': 1})
  return folder


@pytest.fixture
def train(captured, tmp_path):
  def train(**changes):
    messages = []
    changes = {
      **PLAIN,
      'data__answers': str(captured / 'answers.jsonl'),
      'data__store': str(captured / 'taps'),
      'on_message': messages.append,
      **changes,
    }
    (tmp_path / 'answers.jsonl').touch()
    train.messages = messages
    tiny.train(tmp_path, **changes)
    return rows_of(tmp_path)

  return train


def rows_of(folder):
  return metrics_lib.read(folder / 'run' / 'metrics.jsonl')


def steps_of(folder):
  entries = inventory.read(folder / 'run', settings.BEST)
  for entry in entries:
    assert not inventory.why_unreadable(folder / 'run', entry.step)
  return [entry.step for entry in entries]


@pytest.fixture
def reading(monkeypatch):
  """Does something before each read of the thread that reads ahead."""

  def set_to(function):
    read = features.Store.__getitem__

    def watched(self, number):
      if threading.current_thread().name == 'reading of batches':
        function()
      return read(self, number)

    monkeypatch.setattr(features.Store, '__getitem__', watched)

  return set_to


@pytest.fixture
def no_room(monkeypatch):
  """Lets the save of a step fail as a full disk does."""

  def at(step):
    write = ocp.JsonCheckpointHandler._save_fn

    async def full(self, content, folder):
      if f'/{step}.' in str(folder):
        raise OSError(errno.ENOSPC, 'No space left on device')
      await write(self, content, folder)

    monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', full)
    return monkeypatch

  return at


def test_read_that_always_fails_stops_the_run_within_five_seconds(
  train, reading
):
  failed_at = []

  def fail():
    failed_at.append(time.monotonic())
    raise OSError(errno.EIO, 'Input/output error')

  reading(fail)
  with pytest.raises(OSError, match='Input/output') as caught:
    train()
  assert time.monotonic() - failed_at[0] < 5
  # Each read was tried as often as the config says, and then no more.
  assert len(failed_at) == 1 + settings.DataConfig.max_retries
  assert 'in the background: reading of batches' in caught.value.__notes__


def test_read_that_fails_twice_is_counted_and_changes_nothing(
  train, reading, tmp_path
):
  num_reads = 0

  def fail_twice():
    nonlocal num_reads
    num_reads += 1
    if num_reads in (3, 4):
      raise OSError(errno.ESTALE, 'Stale file handle')

  reading(fail_twice)
  rows = train()
  assert [row['step'] for row in rows] == [1, 2, 3, 4, 5, 6]
  assert rows[-1]['data/num_retries'] == 2


def test_failure_is_told_though_a_save_was_under_way(
  train, reading, tmp_path, monkeypatch
):
  is_saving = threading.Event()
  write = ocp.JsonCheckpointHandler._save_fn

  async def slowly(self, *rest):
    is_saving.set()
    time.sleep(0.5)
    await write(self, *rest)

  def fail_then():
    if is_saving.is_set():
      raise OSError(errno.EIO, 'Input/output error')

  monkeypatch.setattr(ocp.JsonCheckpointHandler, '_save_fn', slowly)
  reading(fail_then)
  with pytest.raises(OSError, match='Input/output'):
    train(num_steps=500, data__max_retries=0)
  # What was being saved was saved, and nothing runs on.
  assert steps_of(tmp_path)[-1] == rows_of(tmp_path)[-1]['step']
  names = {thread.name for thread in threading.enumerate()}
  assert not any('reading' in name or 'saving' in name for name in names)


def test_save_that_fails_stops_the_run_and_the_same_command_goes_on(
  train, no_room, tmp_path
):
  patched = no_room(2)
  with pytest.raises(
    errors.UserError, match='checkpoint 2 could not'
  ) as caught:
    train(num_steps=500)
  assert 'No space left' in str(caught.value)
  assert '\n' not in str(caught.value)
  # It is noticed by the save after it, if not before.
  assert steps_of(tmp_path) == [1]
  assert rows_of(tmp_path)[-1]['step'] <= 3
  patched.undo()
  rows = train(num_steps=500, time_limit_s=0.01)
  assert any('resumed from step 1' in text for text in train.messages)
  assert [row['step'] for row in rows] == [1, 2]


def test_last_save_that_fails_exports_nothing(train, no_room, tmp_path):
  no_room(6)
  with pytest.raises(errors.UserError, match='checkpoint 6 could not'):
    train()
  assert not (tmp_path / 'run' / 'export').exists()
  assert steps_of(tmp_path)[-1] == 5


def test_wait_for_data_is_measured_and_starving_is_said(train, reading):
  num_reads = 0

  def stall_once():
    nonlocal num_reads
    num_reads += 1
    if num_reads == 1:
      time.sleep(1.0)

  reading(stall_once)
  rows = train(data__starving_s=0.3, num_steps=2)
  assert rows[0]['data/wait_seconds'] > 0.5 > rows[1]['data/wait_seconds']
  said = [text for text in train.messages if 'starving' in text]
  assert said and 'no batch for' in said[0]


def test_damaged_record_is_named_in_one_line(train, captured):
  (path,) = (captured / 'taps').glob('*.array_record')
  whole = path.read_bytes()
  at = whole.index(b'TAPS') + 200
  path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
  try:
    with pytest.raises(errors.UserError, match=r'record \d+ is damaged') as e:
      train()
  finally:
    path.write_bytes(whole)
  assert '\n' not in str(e.value) and 'again' in str(e.value)


def test_disk_that_takes_no_row_is_named_in_one_line(train, monkeypatch):
  def full(self, step, values):
    raise OSError(errno.ENOSPC, 'No space left on device', 'metrics.jsonl')

  monkeypatch.setattr(metrics_lib.Metrics, 'write', full)
  with pytest.raises(errors.UserError, match='cannot write metrics.jsonl .No'):
    train()


@pytest.mark.parametrize('error', [OSError(errno.EIO, 'x'), KeyError('x')])
def test_other_failures_keep_their_kind(train, monkeypatch, error):
  def fail(self, step, values):
    raise error

  monkeypatch.setattr(metrics_lib.Metrics, 'write', fail)
  with pytest.raises(type(error)):
    train()
