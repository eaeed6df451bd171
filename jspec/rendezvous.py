# SPDX-License-Identifier: MIT
"""How the processes of `jax.distributed` get connections to process 0.

Process 0 opens a port that the system picks, and tells the others where, and a
secret, through their devices: who is not one of them does not have it, and is
turned away.

  process 0  listen | broadcast address, secret | accept, compare, welcome
  another           | broadcast                 | connect: secret, process
"""

import contextlib
import hmac
import json
import secrets
import socket
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from jspec import errors

CONNECT_S = 120
HELLO_S = 5  # For one who connects to say who it is.
_WELCOME = b'welcome\n'
_BYTES = 512


def meet(host: str) -> dict[int, socket.socket]:
  """Connects the processes; all call it at once.

  Args:
    host: address of process 0, by which the others reach it; only what process
      0 gives counts.

  Returns:
    Connections by the process at the other end: process 0 has all others, each
    of these has process 0.

  Raises:
    UserError: process 0 cannot listen there, or not all came in `CONNECT_S`.
  """
  if process := jax.process_index():
    told = _broadcast({})
    return {0: connect(told['host'], told['port'], told['token'], process)}
  try:
    family, _, _, _, where = socket.getaddrinfo(
      host, 0, type=socket.SOCK_STREAM
    )[0]
    listener = socket.create_server(where[:2], family=family)
  except OSError as error:
    raise errors.UserError(
      f'cannot listen on {host} ({error}): the coordinator is an address of the'
      ' host of process 0'
    ) from error
  with listener:
    token = secrets.token_hex(16)
    _broadcast(dict(host=where[0], port=listener.getsockname()[1], token=token))
    return accept(listener, token, jax.process_count())


def accept(
  listener: socket.socket,
  token: str,
  num_processes: int,
  timeout_s: float = CONNECT_S,
) -> dict[int, socket.socket]:
  """Connections of all others, by process; strangers are turned away.

  Raises:
    UserError: not all came in time.
  """
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
      with contextlib.suppress(OSError):  # Whoever listens there notices.
        connection.sendall(_WELCOME)
      found[process] = connection
  return found


def connect(host: str, port: int, token: str, process: int) -> socket.socket:
  """Connects to process 0.

  Raises:
    UserError: it is not there, or turns this one away.
  """
  connection = None
  try:
    connection = socket.create_connection((host, port), timeout=CONNECT_S)
    connection.sendall(f'{token} {process}\n'.encode('ascii'))
    if _line(connection) != _WELCOME:
      raise ConnectionError('it closed the connection')
  except OSError as error:
    if connection is not None:
      connection.close()
    raise errors.UserError(
      f'cannot connect to process 0 at {host}:{port} ({error}): see its log,'
      ' and whether this host reaches it on every port'
    ) from error
  return connection


def _named(connection, token):
  """Which process has connected; None if it does not know the secret."""
  connection.settimeout(HELLO_S)
  try:
    theirs, process = _line(connection).decode('ascii').split(' ')
    if hmac.compare_digest(theirs.encode(), token.encode()):
      return int(process)
  except (OSError, ValueError):
    pass  # A stranger.
  return None


def _line(connection):
  """A line and nothing behind it, where other messages may begin."""
  text = b''
  while not text.endswith(b'\n') and len(text) < _BYTES:
    more = connection.recv(1)
    if not more:
      break
    text += more
  return text


def _broadcast(told):
  """What process 0 tells, everywhere."""
  text = json.dumps(told).encode()
  array = np.zeros((_BYTES,), np.uint8)
  array[: len(text)] = np.frombuffer(text, np.uint8)
  found = multihost_utils.broadcast_one_to_all(array)
  return json.loads(np.asarray(found).tobytes().rstrip(b'\0'))
