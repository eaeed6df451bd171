# SPDX-License-Identifier: MIT
"""Who is let in by process 0, and who is turned away."""

import contextlib
import socket
import threading

import pytest

from jspec import errors, rendezvous


@pytest.fixture
def listener():
  with socket.create_server(('127.0.0.1', 0)) as found:
    yield found


@pytest.fixture
def joining(listener):
  """Connects processes in threads: `made` and `raised` after `ended`."""
  with contextlib.ExitStack() as stack:
    yield Joining(listener.getsockname(), stack)


class Joining:
  """Those on the other side."""

  def __init__(self, address, stack):
    self.made, self.raised = {}, []
    self._address, self._stack = address, stack
    self._threads = []

  def start(self, token, process):
    def run():
      try:
        found = rendezvous.connect(*self._address, token, process)
        self.made[process] = self._stack.enter_context(found)
      except errors.UserError as error:
        self.raised.append(str(error))

    self._threads.append(threading.Thread(target=run, daemon=True))
    self._threads[-1].start()

  def say(self, text):
    """A stranger, who stays connected."""
    connection = socket.create_connection(self._address)
    self._stack.enter_context(connection).sendall(text)

  def accepted(self, listener, num_processes, timeout_s=10.0):
    found = rendezvous.accept(listener, 'secret', num_processes, timeout_s)
    for connection in found.values():
      self._stack.enter_context(connection)
    self.ended()
    return found

  def ended(self):
    for thread in self._threads:
      thread.join(10)


def test_those_who_know_the_secret_are_let_in_by_process(listener, joining):
  for process in (2, 1):
    joining.start('secret', process)
  found = joining.accepted(listener, 3)
  assert sorted(found) == sorted(joining.made) == [1, 2]
  assert joining.raised == []
  # Connections are those of their processes, and nothing was read of them.
  for process, connection in found.items():
    connection.sendall(b'%d' % process)
    assert joining.made[process].recv(1) == b'%d' % process


@pytest.mark.parametrize(
  'token, process', [('wrong', 1), ('secret', 0), ('secret', 2), ('', 1)]
)
def test_strangers_are_turned_away(listener, joining, token, process):
  """And whoever else connects is waited for, and named."""
  joining.start(token, process)
  with pytest.raises(errors.UserError, match=r'processes \[1\] did not'):
    joining.accepted(listener, 2, timeout_s=0.5)
  joining.ended()
  assert 'cannot connect to process 0' in joining.raised[0]


@pytest.mark.parametrize(
  'text', [b'GET / HTTP/1.1\r\n\r\n', b'\xff\n', b'secret x\n', b'secret 7\n']
)
def test_garbage_does_not_keep_others_out(listener, joining, text):
  joining.say(text)
  joining.start('secret', 1)
  assert list(joining.accepted(listener, 2)) == [1]
  assert joining.raised == []


def test_what_follows_the_hello_is_left_to_be_read(listener, joining):
  joining.say(b'secret 1\nalive\n')
  found = joining.accepted(listener, 2)
  assert found[1].recv(16) == b'alive\n'
