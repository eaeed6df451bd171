# SPDX-License-Identifier: MIT
"""Batches that are read ahead: in order, with state, never a silent wait."""

import threading
import time

import pytest

from jspec import supervised
from jspec.data import ahead


class Numbers:
  """Counts from its state; does as told at some of the numbers."""

  def __init__(self, last=10**9, at=None):
    self.next = 0
    self.last = last
    self.at = at or {}

  def __next__(self):
    if self.next == self.last:
      raise StopIteration
    number, self.next = self.next, self.next + 1
    self.at.get(number, lambda: None)()
    return number

  def get_state(self):
    return {'next': self.next}

  def set_state(self, state):
    self.next = state['next']


def fail():
  raise OSError('the disk is gone')


def alive():
  return sum(t.name == 'reading of batches' for t in threading.enumerate())


def test_state_is_that_of_the_batch_handed_out():
  batches = ahead.Ahead(Numbers(), 3)
  assert batches.get_state() == {'next': 0}
  assert [next(batches) for _ in range(5)] == [0, 1, 2, 3, 4]
  state = batches.get_state()
  assert state == {'next': 5}
  next(batches)
  batches.set_state(state)
  assert next(batches) == 5
  batches.close()


@pytest.mark.parametrize('size', [1, 2, 5])
def test_thread_ends_with_the_stream(size):
  batches = ahead.Ahead(Numbers(), size)
  next(batches)
  assert alive() == 1
  batches.close()
  batches.close()
  assert alive() == 0
  with pytest.raises(ValueError, match='closed'):
    next(batches)


def test_end_is_told_as_often_as_it_is_asked_for():
  batches = ahead.Ahead(Numbers(last=3), 2)
  assert list(batches) == [0, 1, 2]
  for _ in range(2):
    with pytest.raises(StopIteration):
      next(batches)
  batches.set_state({'next': 1})
  assert list(batches) == [1, 2]


def test_failure_arrives_with_its_cause_behind_what_was_read():
  batches = ahead.Ahead(Numbers(at={2: fail}), 5)
  assert [next(batches), next(batches)] == [0, 1]
  for _ in range(2):
    with pytest.raises(OSError, match='disk is gone') as caught:
      next(batches)
  assert 'reading of batches' in caught.value.__notes__[0]
  assert alive() == 0


def test_owner_knows_of_the_failure_before_the_batch_is_reached():
  owner = supervised.Owner()
  batches = ahead.Ahead(Numbers(at={3: fail}), 8, owner=owner)
  assert next(batches) == 0
  deadline = time.monotonic() + 5
  while owner.failed is None and time.monotonic() < deadline:
    time.sleep(0.01)
  with pytest.raises(OSError, match='disk is gone'):
    owner.check()


def test_failure_elsewhere_ends_a_wait():
  owner, let_go = supervised.Owner(), threading.Event()
  batches = ahead.Ahead(Numbers(at={1: let_go.wait}), 2, owner=owner)
  next(batches)
  began = time.monotonic()
  owner.start('saving', fail)
  with pytest.raises(OSError, match='disk is gone'):
    next(batches)
  assert time.monotonic() - began < 5
  let_go.set()
  batches.close()


def test_starving_is_said_and_said_less_often_as_it_lasts():
  let_go, said = threading.Event(), []

  def on_message(line):
    said.append(line)
    if len(said) == 2:
      let_go.set()

  batches = ahead.Ahead(
    Numbers(at={1: lambda: let_go.wait(10)}),
    2,
    starving_s=0.3,
    on_message=on_message,
  )
  assert next(batches) == 0
  assert next(batches) == 1
  assert batches.wait_seconds > 0.6
  assert len(said) == 2
  assert all('starving: no batch for' in line for line in said)
  assert next(batches) == 2 and batches.wait_seconds < 0.3
  batches.close()


def test_read_that_never_returns_is_left_behind_and_said(monkeypatch):
  let_go, said = threading.Event(), []
  batches = ahead.Ahead(Numbers(at={1: let_go.wait}), 2, on_message=said.append)
  next(batches)
  stop = batches._stop
  monkeypatch.setattr(batches, '_stop', lambda: stop(timeout_s=0.1))
  with pytest.raises(RuntimeError, match='does not end'):
    batches.set_state({'next': 0})
  batches.close()
  assert len(said) == 1 and 'left behind' in said[0]
  let_go.set()
