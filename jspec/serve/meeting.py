# SPDX-License-Identifier: MIT
"""How the processes of a mesh find each other, before they load anything.

The leader is process 0. It opens a port that the system picks, and tells the
others where, and a secret, through the devices of the mesh: who is not one of
them does not have it, and is turned away.

  leader     listen | broadcast address, secret | accept, compare the secret
  follower          | broadcast                 | connect, say it
"""

import hmac
import json
import secrets
import socket
import time

import jax
import numpy as np
from jax.experimental import multihost_utils

from jspec import errors
from jspec.serve import followers, following, frames

CONNECT_S = 120
HELLO_S = 5  # For one who connects to say who it is.
_BYTES = 512


def meet(host: str) -> followers.Leader | following.Follower:
  """Connects the processes of `jax.distributed`; all call it at once.

  Args:
    host: address of the leader, by which the others reach it; only the leader's
      own counts.

  Raises:
    UserError: the port cannot be opened, or not all came within `CONNECT_S`.
  """
  if jax.process_index():
    return _join()
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
    return followers.Leader(accept(listener, token, jax.process_count()))


def accept(
  listener: socket.socket,
  token: str,
  num_processes: int,
  timeout_s: float = CONNECT_S,
) -> dict[int, socket.socket]:
  """Connections of all followers, by process; strangers are turned away.

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
      connection.sendall(frames.encode([followers.WELCOME, '']))
      found[process] = connection
  return found


def connect(
  host: str, port: int, token: str, process: int
) -> following.Follower:
  """Connects a follower.

  Raises:
    UserError: the leader is not there, or turns it away.
  """
  connection = None
  try:
    connection = socket.create_connection((host, port), timeout=CONNECT_S)
    connection.sendall(frames.encode([token, process]))
    frames.receive(connection, most=0)
  except (OSError, frames.Garbled) as error:
    if connection is not None:
      connection.close()
    raise errors.UserError(
      f'cannot connect to the leader at {host}:{port} ({error}): see its log,'
      ' and whether this host reaches it on every port'
    ) from error
  return following.Follower(connection)


def _join():
  told = _broadcast({})
  return connect(told['host'], told['port'], told['token'], jax.process_index())


def _named(connection, token):
  """Which process has connected; None if it does not know the secret."""
  connection.settimeout(HELLO_S)
  try:
    (theirs, process), _ = frames.receive(connection, most=0)
    is_known = hmac.compare_digest(str(theirs).encode(), token.encode())
  except (OSError, ValueError, TypeError):
    return None
  return process if is_known and type(process) is int else None


def _broadcast(told):
  """What process 0 tells, everywhere."""
  text = json.dumps(told).encode()
  array = np.zeros((_BYTES,), np.uint8)
  array[: len(text)] = np.frombuffer(text, np.uint8)
  found = multihost_utils.broadcast_one_to_all(array)
  return json.loads(np.asarray(found).tobytes().rstrip(b'\0'))
