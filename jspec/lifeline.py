# SPDX-License-Identifier: MIT
"""Processes of one run notice at once when one of them is gone.

A process that waits for another in a collective waits until JAX misses the
other's heartbeat, a minute later, and is then ended with pages of log. So every
process has a connection to process 0 beside, over which nothing is said but
that it is alive:

  I to 0, 0 to I   alive   every `BEAT_S`
                   bye     it ends, all is well
  0 to I           lost K  process K is gone

A connection that closes without a bye, or is silent for `MISSED_S`, is of a
process that is gone. A process that stands still (a debugger, a stopped job) is
gone as well.
"""

import hmac
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable

import jax
import numpy as np
from jax.experimental import multihost_utils

from jspec import errors

CONNECT_S = 120
HELLO_S = 5  # For one who connects to say who it is.
BEAT_S = 2
MISSED_S = 20
_BYTES = 512


class Lifeline:
  """Watches connections from `start` to `close`."""

  def __init__(
    self,
    connections: dict[int, socket.socket],
    on_lost: Callable[[int], None],
    *,
    beat_s: float = BEAT_S,
    missed_s: float = MISSED_S,
  ):
    """Takes connections over.

    Args:
      connections: by process at the other end; process 0 has all others, each
        of these has process 0.
      on_lost: called once, on a thread, with the process that is gone.
      beat_s: seconds between signs of life.
      missed_s: seconds without one.
    """
    self._connections = connections
    self._on_lost = on_lost
    self._beat_s = beat_s
    self._lock = threading.Lock()
    self._is_over = threading.Event()
    for connection in connections.values():
      connection.settimeout(missed_s)

  def start(self) -> None:
    """Starts the threads; they do not keep the process alive."""
    for process, connection in self._connections.items():
      self._run(self._listen, process, connection)
    self._run(self._beat)

  def close(self) -> None:
    """Says bye; from here on nobody is missed."""
    if not self._is_over.is_set():
      self._is_over.set()
      self._say('bye')

  def _run(self, target, *args):
    threading.Thread(
      target=target, args=args, name='lifeline', daemon=True
    ).start()

  def _beat(self):
    while not self._is_over.wait(self._beat_s):
      self._say('alive')

  def _listen(self, process, connection):
    gone = process
    try:
      with connection.makefile('r', encoding='ascii') as lines:
        for line in lines:
          word, _, rest = line.strip().partition(' ')
          if word == 'bye':
            return
          if word == 'lost':
            gone = int(rest)
            break
    except (OSError, ValueError):
      pass  # As good as closed.
    with self._lock:
      if self._is_over.is_set():
        return
      self._is_over.set()
    self._say(f'lost {gone}')
    self._on_lost(gone)

  def _say(self, text):
    for connection in self._connections.values():
      try:
        with self._lock:
          connection.sendall(f'{text}\n'.encode('ascii'))
      except OSError:
        pass  # Whoever listens there notices.


def tie(host: str, on_lost: Callable[[int], None]) -> Lifeline:
  """Connects the processes of `jax.distributed`; all call it at once.

  Args:
    host: address of process 0, by which the others reach it.
    on_lost: of `Lifeline`.

  Raises:
    UserError: process 0 cannot listen there, or not all came in `CONNECT_S`.
  """
  if jax.process_index():
    told = _broadcast({})
    made = Lifeline({0: _connect(**told)}, on_lost)
  else:
    try:
      family, _, _, _, where = socket.getaddrinfo(
        host, 0, type=socket.SOCK_STREAM
      )[0]
      listener = socket.create_server(where[:2], family=family)
    except OSError as error:
      raise errors.UserError(
        f'cannot listen on {host} ({error}): the coordinator is an address of'
        ' the host of process 0'
      ) from error
    with listener:
      token = secrets.token_hex(16)
      port = listener.getsockname()[1]
      _broadcast(dict(host=where[0], port=port, token=token))
      made = Lifeline(
        _accept(listener, token, jax.process_count(), CONNECT_S), on_lost
      )
  made.start()
  return made


def _accept(listener, token, num_processes, timeout_s):
  """Connections of the others, by process; strangers are turned away."""
  found = {}
  ends = time.monotonic() + timeout_s
  while len(found) < num_processes - 1:
    listener.settimeout(max(ends - time.monotonic(), 0.01))
    try:
      connection, _ = listener.accept()
    except TimeoutError as error:
      missing = sorted(set(range(1, num_processes)) - set(found))
      raise errors.UserError(
        f'the processes {missing} did not connect in {timeout_s:g} s: see their'
        ' logs, and whether they reach this host on every port'
      ) from error
    process = _named(connection, token)
    if process is None or process in found or not 0 < process < num_processes:
      connection.close()
    else:
      found[process] = connection
  return found


def _named(connection, token):
  """Which process has connected; None if it does not know the secret."""
  connection.settimeout(HELLO_S)
  text = b''
  try:
    # No more than the line: signs of life may be behind it.
    while not text.endswith(b'\n') and len(text) < _BYTES:
      more = connection.recv(1)
      if not more:
        return None
      text += more
    theirs, process = text.decode('ascii').split()
    if hmac.compare_digest(theirs.encode(), token.encode()):
      return int(process)
  except (OSError, ValueError):
    pass  # A stranger.
  return None


def _connect(host, port, token):
  try:
    connection = socket.create_connection((host, port), timeout=CONNECT_S)
    connection.sendall(f'{token} {jax.process_index()}\n'.encode('ascii'))
  except OSError as error:
    raise errors.UserError(
      f'cannot connect to process 0 at {host}:{port} ({error}): see its log,'
      ' and whether this host reaches it on every port'
    ) from error
  return connection


def _broadcast(told):
  """What process 0 tells, everywhere."""
  text = json.dumps(told).encode()
  array = np.zeros((_BYTES,), np.uint8)
  array[: len(text)] = np.frombuffer(text, np.uint8)
  found = multihost_utils.broadcast_one_to_all(array)
  return json.loads(np.asarray(found).tobytes().rstrip(b'\0'))
