# SPDX-License-Identifier: MIT
"""The leader's side: it tells its followers what it is about to call.

  leader     meet | agree | ready | send, send, ... | close
  follower   meet | agree | ready | receive, ...    | end

A follower that dies closes its connection, and one whose host is lost is missed
after `DEAD_S`; whatever the leader does next, or waits for, raises `Lost`. For
a program that runs across hosts never ends once one of them is gone, so the
leader waits in a thread that it can leave behind. A follower that stands still
is missed by `jspec.distributed`, which ends all processes.
"""

import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from jspec import errors
from jspec.serve import frames

LOOK_S = 0.1  # Between two looks whether all are alive, while one waits.
SEND_S = 60  # For a follower to take in what is sent.
DEAD_S = 30  # For a host that is lost.
GRACE_S = 2  # Between a program's failure and the end of who caused it.
READY, END, FAILED = 'ready', 'end', 'failed'
FACTS, AGREED, REFUSED = 'facts', 'agreed', 'refused'


class Lost(RuntimeError):
  """A follower is gone; what lies on the devices cannot be used any more."""


class Leader:
  """The connections to all followers, by their process."""

  def __init__(self, connections: Mapping[int, socket.socket]):
    self._connections = dict(sorted(connections.items()))
    self._problem = ''
    self._work = queue.SimpleQueue()
    for connection in self._connections.values():
      prepare(connection)
      connection.settimeout(SEND_S)
    # A daemon: it may never come back from a program that lost a host.
    threading.Thread(target=self._run, name='jspec-wait', daemon=True).start()

  def agree(self, facts: Mapping[str, str]) -> None:
    """Lets followers in that would run the same programs on the same models.

    Args:
      facts: what must be the same everywhere (`fingerprint.facts`).

    Raises:
      UserError: a follower differs; it is told so as well.
      Lost: a follower is gone.
    """
    refusals = []
    for process, connection in self._connections.items():
      kind, theirs = self._hear(process)
      names = [
        name
        for name in sorted({*facts, *theirs})
        if facts.get(name) != theirs.get(name)
      ]
      if kind != FACTS or names:
        refusals.append(
          f'process {process} has other {", ".join(names) or "words"} than the'
          ' leader: start all of them with the same jspec, flags and files'
        )
        self._say(process, connection, frames.encode([REFUSED, refusals[-1]]))
    if refusals:
      raise errors.UserError(refusals[0])
    self._tell_all(frames.encode([AGREED, '']))

  def ready(self) -> None:
    """Waits until every follower has compiled its programs.

    Raises:
      Lost: a follower is gone, or could not.
    """
    for process in self._connections:
      self._hear(process)

  def send(self, call: Any, said: Any) -> None:
    """Tells everyone to make a call.

    Args:
      call: key of the program.
      said: what the host says, in plain containers of numpy arrays.

    Raises:
      Lost: a follower is gone, or takes nothing in for `SEND_S`.
    """
    self.check()
    self._tell_all(frames.encode(call, said))

  def wait(self, block: Callable[[], Any]) -> None:
    """Returns when `block()` does, with what it raises.

    Raises:
      Lost: a follower is gone, and `block` may never return.
    """
    done = queue.SimpleQueue()
    self._work.put((block, done))
    while True:
      try:
        error = done.get(timeout=LOOK_S)
        break
      except queue.Empty:
        self.check()
    if error is None:
      return
    # A program that lost a host often fails before its connection closes.
    for _ in range(round(GRACE_S / LOOK_S)):
      self.check()
      time.sleep(LOOK_S)
    raise error

  def check(self) -> None:
    """Raises `Lost` if a follower is gone."""
    if self._problem:
      raise Lost(self._problem)
    found = select.select(list(self._connections.values()), (), (), 0)[0]
    for process, connection in self._connections.items():
      if connection in found:
        self._hear(process)  # Followers have nothing to say but that they fail.
        self._lost(process, 'said what nobody asked for')

  def close(self) -> None:
    """Tells followers that nothing more comes."""
    for connection in self._connections.values():
      try:
        connection.sendall(frames.encode([END]))
      except OSError:
        pass  # It is gone already.
      connection.close()
    self._connections = {}

  def _run(self):
    while True:
      block, done = self._work.get()
      try:
        block()
        done.put(None)
      except BaseException as error:  # noqa: BLE001
        done.put(error)

  def _tell_all(self, message):
    for process, connection in self._connections.items():
      self._say(process, connection, message)

  def _say(self, process, connection, message):
    try:
      connection.sendall(message)
    except OSError as error:
      self._lost(process, f'takes nothing in ({error})')

  def _hear(self, process):
    """What a follower says, however long it takes; its end is an error."""
    connection = self._connections[process]
    connection.settimeout(None)
    try:
      head, _ = frames.receive(connection, most=0)
      kind, text = head
    except (OSError, frames.Garbled) as error:
      self._lost(process, f'is gone ({error})')
    except (TypeError, ValueError):
      self._lost(process, 'says what is no answer')
    finally:
      connection.settimeout(SEND_S)
    if kind == FAILED:
      self._lost(process, f'failed: {text}')
    return kind, text

  def _lost(self, process, why):
    self._problem = (
      f'process {process} {why}: start all processes again; its own log says'
      ' more'
    )
    raise Lost(self._problem)


def prepare(connection: socket.socket) -> None:
  """Sends small messages at once, and notices that a host is lost."""
  connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
  connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
  for name, value in (
    ('TCP_KEEPIDLE', DEAD_S // 3),
    ('TCP_KEEPINTVL', DEAD_S // 6),
    ('TCP_KEEPCNT', 4),
    ('TCP_USER_TIMEOUT', DEAD_S * 1000),
  ):
    if hasattr(socket, name):  # Not every system has all of them.
      connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
