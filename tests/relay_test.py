# SPDX-License-Identifier: MIT
"""What passes through a relay, and what does not."""

import contextlib
import socket

import pytest

from jspec import relay
from tests import starting

SOON = 10


@pytest.fixture
def tied():
  """Connects through a relay; closes all that it opened."""
  with contextlib.ExitStack() as stack:

    def to(where):
      host, _, port = where.rpartition(':')
      made = socket.create_connection((host, int(port)), timeout=SOON)
      return stack.enter_context(made)

    def start(where):
      host, _, port = where.rpartition(':')
      found = relay.start(host, int(port))
      program = relay._started[-1]
      stack.callback(program.wait, SOON)
      stack.callback(program.stdin.close)  # As the end of its process does.
      stack.enter_context(program.stdout)
      return found

    def listen(where):
      host, _, port = where.rpartition(':')
      made = stack.enter_context(socket.create_server((host, int(port))))
      made.settimeout(SOON)
      return made

    yield start, to, listen


def accepted(listener):
  made, _ = listener.accept()
  made.settimeout(SOON)
  return made


def is_silent(connection):
  connection.settimeout(0.3)
  try:
    connection.recv(1)
  except TimeoutError:
    return True
  return False


def test_words_pass_both_ways_and_an_end_passes_to_the_coordinator(tied):
  start, to, listen = tied
  where = starting.coordinator()
  listener = listen(where)
  ours = to(start(where))
  with accepted(listener) as theirs:
    ours.sendall(b'who is there')
    assert theirs.recv(100) == b'who is there'
    theirs.sendall(b'all')
    assert ours.recv(100) == b'all'
    ours.close()
    assert theirs.recv(100) == b''


def test_the_end_of_the_coordinator_does_not_pass(tied):
  start, to, listen = tied
  where = starting.coordinator()
  through = start(where)
  with listen(where) as listener:
    ours, straight = to(through), to(where)
    with accepted(listener), accepted(listener):
      pass
  assert not is_silent(straight)  # It is told.
  assert is_silent(ours)
  for _ in range(3):
    ours.sendall(b'anybody')
    assert is_silent(ours)
  assert is_silent(to(through))


def test_a_relay_ends_with_the_process_that_started_it(tied):
  start, to, _ = tied
  ours = to(start(starting.coordinator()))
  program = relay._started[-1]
  program.terminate()  # Of a whole job: it is for others to end first.
  assert is_silent(ours)
  assert program.poll() is None
  program.stdin.close()
  assert program.wait(SOON) == 0
  assert not is_silent(ours)
