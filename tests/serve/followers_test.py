# SPDX-License-Identifier: MIT
"""Leader and follower over a socket: who may go along, and how they end."""

import socket
import threading
import time

import numpy as np
import pytest

from jspec import errors
from jspec.serve import followers, following, frames

FACTS = {'code': 'a', 'settings': 'b'}


@pytest.fixture
def pair():
  """A leader, and its follower, process 1, with the follower's end."""
  left, right = tcp()
  with left, right:
    yield followers.Leader({1: left}), following.Follower(right), right


def tcp():
  with socket.create_server(('127.0.0.1', 0)) as server:
    right = socket.create_connection(server.getsockname())
    return server.accept()[0], right


@pytest.fixture(autouse=True)
def closed(monkeypatch):
  """Closes whatever was connected."""
  made = []
  prepare = followers.prepare
  monkeypatch.setattr(
    followers, 'prepare', lambda one: (made.append(one), prepare(one))
  )
  yield
  for connection in made:
    connection.close()


def aside(function, *of):
  """Runs something in a thread; what it raised, when that is joined."""
  raised = []

  def run():
    try:
      function(*of)
    except Exception as error:
      raised.append(error)

  thread = threading.Thread(target=run, daemon=True)
  thread.start()
  return thread, raised


def test_calls_arrive_in_order_until_the_leader_closes(pair):
  leader, follower, _ = pair
  thread, raised = aside(follower.agree, FACTS)
  leader.agree(FACTS)
  thread.join(10)
  assert raised == []
  follower.ready()
  leader.ready()
  for i in range(3):
    leader.send(['start', i], (np.int32(i),))
  leader.close()
  for i in range(3):
    key, (said,) = follower.receive()
    assert (key, int(said)) == (['start', i], i)
  assert follower.receive() is None


def test_who_would_run_something_else_is_refused_by_name(pair):
  leader, follower, _ = pair
  thread, raised = aside(follower.agree, {**FACTS, 'settings': 'c'})
  with pytest.raises(errors.UserError, match='process 1 has other settings'):
    leader.agree(FACTS)
  thread.join(10)
  assert 'refuses this process: process 1 has other settings' in str(raised[0])


def test_a_leader_that_leaves_without_a_word_is_an_error(pair):
  leader, follower, _ = pair
  for connection in leader._connections.values():
    connection.close()
  with pytest.raises(errors.UserError, match='the leader is gone'):
    follower.receive()


def test_the_next_call_without_a_follower_is_an_error_and_so_are_all(pair):
  leader, _, connection = pair
  leader.send(['start', 0], ())
  connection.close()
  time.sleep(0.1)
  for _ in range(2):
    with pytest.raises(followers.Lost, match='process 1 is gone'):
      leader.send(['start', 0], ())


def test_a_follower_tells_why_it_failed(pair):
  leader, follower, _ = pair
  with pytest.raises(ValueError), follower.telling():
    raise ValueError('no room')
  with pytest.raises(followers.Lost, match='failed: ValueError: no room'):
    leader.ready()


def test_waiting_ends_when_a_follower_is_gone(pair):
  leader, _, connection = pair
  never = threading.Event()
  timer = threading.Timer(0.3, connection.close)
  timer.start()
  began = time.monotonic()
  with pytest.raises(followers.Lost):
    leader.wait(never.wait)
  assert time.monotonic() - began < 5
  never.set()


def test_waiting_gives_what_is_raised_if_all_are_there(pair, monkeypatch):
  monkeypatch.setattr(followers, 'GRACE_S', 0.2)
  leader, _, _ = pair

  def fail():
    raise OSError('memory')

  leader.wait(lambda: None)
  with pytest.raises(OSError, match='memory'):
    leader.wait(fail)


def test_what_fails_since_a_follower_is_gone_is_laid_to_it(pair):
  leader, _, connection = pair

  def fail():
    connection.shutdown(socket.SHUT_RDWR)
    raise OSError('reset by peer')

  with pytest.raises(followers.Lost):
    leader.wait(fail)


def test_a_follower_that_takes_nothing_in_is_lost(monkeypatch):
  monkeypatch.setattr(followers, 'SEND_S', 0.3)
  left, right = tcp()
  with left, right:
    leader = followers.Leader({1: left})
    said = np.zeros((1 << 22,), np.int32)
    with pytest.raises(followers.Lost, match='takes nothing in'):
      for _ in range(8):
        leader.send(['start', 0], (said,))


def test_a_follower_that_speaks_unasked_is_lost(pair):
  leader, _, connection = pair
  connection.sendall(frames.encode(['hello', '']))
  time.sleep(0.1)
  with pytest.raises(followers.Lost, match='nobody asked'):
    leader.check()
