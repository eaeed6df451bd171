# SPDX-License-Identifier: MIT
"""Who is told of whom, over sockets in one process."""

import functools
import queue
import socket
import threading
import time

import pytest

from jspec import lifeline

SOON = 5


@pytest.fixture
def tied():
  """Makes lifelines of processes; tells whom each missed, and their sockets."""
  lines, pairs = [], {}

  def make(num_processes, **timing):
    missed = [queue.Queue() for _ in range(num_processes)]
    timing = dict(beat_s=0.05, missed_s=1.0) | timing
    pairs.update({i: socket.socketpair() for i in range(1, num_processes)})
    ends = [{i: pair[0] for i, pair in pairs.items()}]
    ends += [{0: pair[1]} for pair in pairs.values()]
    for connections, found in zip(ends, missed, strict=True):
      told = functools.partial(put, found)
      lines.append(lifeline.Lifeline(connections, told, **timing))
      lines[-1].start()
    return lines, missed, pairs

  yield make
  for line in lines:
    line.close()
  for pair in pairs.values():
    for one in pair:
      one.close()
  # Nobody reads any more.
  deadline = time.monotonic() + SOON
  while any(t.name == 'lifeline' for t in threading.enumerate()):
    assert time.monotonic() < deadline
    time.sleep(0.05)


def put(found, process, text):
  found.put(process if text is None else (process, text))


def cut(pair):
  """What the end of a process does to its side."""
  pair.shutdown(socket.SHUT_RDWR)


def test_all_are_told_of_one_that_is_gone(tied):
  _, missed, pairs = tied(3)
  cut(pairs[2][1])
  assert missed[0].get(timeout=SOON) == 2
  assert missed[1].get(timeout=SOON) == 2


def test_all_are_told_with_what_one_fails(tied):
  lines, missed, pairs = tied(3)
  text = 'no room for "ä"\nnor more'
  lines[2].fail(2, text)
  cut(pairs[2][1])
  assert missed[0].get(timeout=SOON) == (2, text)
  assert missed[1].get(timeout=SOON) == (2, text)
  assert missed[2].empty()
  # It is the end of all: nobody is gone besides.
  cut(pairs[1][1])
  time.sleep(0.2)
  assert all(found.empty() for found in missed)


def test_the_first_that_fails_leaves_last(tied):
  lines, missed, pairs = tied(3)
  lines[0].fail(0, 'no room')
  for found in missed[1:]:
    assert found.get(timeout=SOON) == (0, 'no room')
  began = time.monotonic()
  lines[0].wait_for_others(0.3)
  assert 0.3 <= time.monotonic() - began < SOON
  for pair in pairs.values():
    cut(pair[1])
  began = time.monotonic()
  lines[0].wait_for_others(2.0 * SOON)
  assert time.monotonic() - began < SOON


def test_the_loss_of_the_first_is_noticed_by_the_others(tied):
  lines, missed, pairs = tied(3)
  lines[0]._is_over.set()  # Whoever is gone says nothing of the others.
  for ours, _ in pairs.values():
    cut(ours)
  assert missed[1].get(timeout=SOON) == missed[2].get(timeout=SOON) == 0


def test_silence_is_a_loss_and_a_living_process_is_not_silent(tied):
  lines, missed, _ = tied(3, missed_s=0.5)
  time.sleep(1.0)
  assert all(found.empty() for found in missed)
  lines[1]._is_over.set()  # It says nothing any more.
  assert missed[0].get(timeout=SOON) == 1
  assert missed[2].get(timeout=SOON) == 1


def test_nobody_is_missed_who_said_bye(tied):
  lines, missed, pairs = tied(3)
  lines[1].close()
  cut(pairs[1][1])
  time.sleep(0.3)
  for line in lines:
    line.close()
  time.sleep(0.2)
  assert all(found.empty() for found in missed)
