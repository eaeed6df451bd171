# SPDX-License-Identifier: MIT
"""Who is told of whom, over sockets in one process."""

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
      lines.append(lifeline.Lifeline(connections, found.put, **timing))
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


def cut(pair):
  """What the end of a process does to its side."""
  pair.shutdown(socket.SHUT_RDWR)


def test_all_are_told_of_one_that_is_gone(tied):
  _, missed, pairs = tied(3)
  cut(pairs[2][1])
  assert missed[0].get(timeout=SOON) == 2
  assert missed[1].get(timeout=SOON) == 2


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
