# SPDX-License-Identifier: MIT
"""Processes of one run notice at once when one of them ends.

A process that waits for another in a collective waits until JAX misses the
other's heartbeat, a minute later, and is then ended with pages of log. So every
process has a connection to process 0 beside, over which nothing is said but
that it is alive, or what it ends with:

  I to 0, 0 to I   alive            every `BEAT_S`
                   bye              it ends, all is well
                   failed K "TEXT"  process K ends with an error; TEXT is JSON
  0 to I           lost K           process K is gone

A connection that closes without a bye, or is silent for `MISSED_S`, is of a
process that is gone. A process that stands still (a debugger, a stopped job) is
gone as well. Errors go this way, not by a collective: where one process fails,
the others are at any other place of the program.
"""

import json
import socket
import threading
import time
from collections.abc import Callable

from jspec import rendezvous

BEAT_S = 2
MISSED_S = 20


class Lifeline:
  """Watches connections from `start` to `close`."""

  def __init__(
    self,
    connections: dict[int, socket.socket],
    on_end: Callable[[int, str | None], None],
    *,
    beat_s: float = BEAT_S,
    missed_s: float = MISSED_S,
  ):
    """Takes connections over.

    Args:
      connections: by process at the other end; process 0 has all others, each
        of these has process 0.
      on_end: called once, on a thread, with the process that ended and the
        text of its error; None if it is gone without a word.
      beat_s: seconds between signs of life.
      missed_s: seconds without one.
    """
    self._connections = connections
    self._on_end = on_end
    self._beat_s = beat_s
    self._lock = threading.Lock()
    self._is_over = threading.Event()
    self._listeners: list[threading.Thread] = []
    for connection in connections.values():
      connection.settimeout(missed_s)

  def start(self) -> None:
    """Starts the threads; they do not keep the process alive."""
    self._listeners = [
      self._run(self._listen, process, connection)
      for process, connection in self._connections.items()
    ]
    self._run(self._beat)

  def close(self) -> None:
    """Says bye; from here on nobody is missed."""
    if not self._is_over.is_set():
      self._is_over.set()
      self._say('bye')

  def fail(self, process: int, text: str) -> None:
    """Tells the others of an error; from here on nobody is missed.

    Args:
      process: it ends this process.
      text: of the error.
    """
    self._is_over.set()
    self._say(f'failed {process} {json.dumps(text)}')

  def wait_for_others(self, timeout_s: float) -> None:
    """Waits until the processes at the other ends have left."""
    ends = time.monotonic() + timeout_s
    for thread in self._listeners:
      if thread is not threading.current_thread():
        thread.join(max(ends - time.monotonic(), 0))

  def _run(self, target, *args):
    thread = threading.Thread(
      target=target, args=args, name='lifeline', daemon=True
    )
    thread.start()
    return thread

  def _beat(self):
    while not self._is_over.wait(self._beat_s):
      self._say('alive')

  def _listen(self, process, connection):
    gone, text = process, None
    try:
      with connection.makefile('r', encoding='ascii') as lines:
        for line in lines:
          word, _, rest = line.strip().partition(' ')
          if word == 'bye':
            return
          if self._is_over.is_set():
            continue  # All that is left to know is when it leaves.
          if word == 'lost':
            gone = int(rest)
            break
          if word == 'failed':
            who, _, quoted = rest.partition(' ')
            gone, text = int(who), json.loads(quoted)
            break
    except (OSError, ValueError):
      pass  # As good as closed.
    with self._lock:
      if self._is_over.is_set():
        return
      self._is_over.set()
    if text is None:
      self._say(f'lost {gone}')
    else:
      self.fail(gone, text)
    self._on_end(gone, text)

  def _say(self, text):
    for connection in self._connections.values():
      try:
        with self._lock:
          connection.sendall(f'{text}\n'.encode('ascii'))
      except OSError:
        pass  # Whoever listens there notices.


def tie(host: str, on_end: Callable[[int, str | None], None]) -> Lifeline:
  """Connects the processes of `jax.distributed`; all call it at once.

  Args:
    host: of `rendezvous.meet`.
    on_end: of `Lifeline`.

  Raises:
    UserError: as `rendezvous.meet`.
  """
  made = Lifeline(rendezvous.meet(host), on_end)
  made.start()
  return made
