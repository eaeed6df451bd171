# SPDX-License-Identifier: MIT
"""What fails in the background reaches whoever started it."""

import threading

import pytest

from jspec import supervised


def fail(text):
  raise OSError(text)


def test_failure_is_raised_by_the_owner_with_its_task_named():
  owner = supervised.Owner()
  owner.check()
  task = owner.start('reading', lambda: fail('gone'))
  assert task.join(5.0)
  assert not task.was_raised
  with pytest.raises(OSError, match='gone') as caught:
    owner.check()
  assert caught.value.__notes__ == ['in the background: reading']
  assert task.was_raised


def test_first_failure_wins_and_stays():
  owner = supervised.Owner()
  owner.start('first', lambda: fail('first')).join(5.0)
  second = owner.start('second', lambda: fail('second'))
  with pytest.raises(OSError, match='second'):
    second.wait()
  for _ in range(2):
    with pytest.raises(OSError, match='first'):
      owner.check()
  assert owner.failed.name == 'first'


def test_task_that_ends_well_raises_nothing():
  done = []
  owner = supervised.Owner()
  owner.start('well', lambda: done.append(1)).wait()
  owner.check()
  assert done == [1] and owner.failed is None


def test_task_that_hangs_is_seen_and_keeps_no_process_alive():
  let_go = threading.Event()
  task = supervised.Owner().start('hung read', let_go.wait)
  assert not task.join(0.05) and task.is_running
  (thread,) = (t for t in threading.enumerate() if t.name == 'hung read')
  assert thread.daemon
  let_go.set()
  assert task.join(5.0)
