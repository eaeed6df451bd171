# SPDX-License-Identifier: MIT
"""Messages between processes: a line of JSON, and the arrays it names.

  jsp1 | length of the text | bytes of arrays | text | arrays, one after another

  text  {"head": ["fused", 4],
         "tree": [{"rows": 0, "given": "nothing", ...}],
         "arrays": [["int32", [4]], ...]}

In the tree a number is an array, a string is what every process holds (`Held`),
and a list is a tuple. Nothing that is read is run, and nothing is allocated
that is larger than `MOST_BYTES`: it is no pickle.
"""

import json
import math
import socket
import struct
from typing import Any

import numpy as np

from jspec.serve import bare

MAGIC = b'jsp1'
MOST_TEXT = 1 << 20
MOST_BYTES = 1 << 28
DTYPES = ('bool', 'int32', 'uint32', 'float32')
_PREFIX = struct.Struct('>4sIQ')


class Closed(ConnectionError):
  """The other side is gone."""


class Garbled(ValueError):
  """What came is no message."""


def encode(head: Any, tree: Any = None) -> bytes:
  """A message as it is sent.

  Args:
    head: what JSON can say.
    tree: dicts, tuples, None, `Held` and numpy arrays.

  Raises:
    Garbled: it cannot be said, or is too large; a defect of the caller.
  """
  arrays = []

  def say(node):
    if node is None:
      return None
    if isinstance(node, bare.Held):
      return node.name
    if isinstance(node, dict):
      return {key: say(part) for key, part in node.items()}
    if isinstance(node, tuple):
      return [say(part) for part in node]
    arrays.append(np.asarray(node))
    return len(arrays) - 1

  said = say(tree)
  kinds = [[array.dtype.name, list(array.shape)] for array in arrays]
  text = json.dumps({'head': head, 'tree': said, 'arrays': kinds}).encode()
  body = b''.join(array.tobytes() for array in arrays)
  for dtype, _ in kinds:
    if dtype not in DTYPES:
      raise Garbled(f'{dtype} is not sent: give {DTYPES}')
  _check_sizes(len(text), len(body))
  return _PREFIX.pack(MAGIC, len(text), len(body)) + text + body


def receive(connection: socket.socket, most: int = MOST_BYTES) -> Any:
  """Waits for a message; its head and its tree.

  Args:
    connection: read until the message ends.
    most: bytes of its arrays.

  Raises:
    Closed: the other side is gone.
    Garbled: it is no message; nothing more can be read here.
  """
  prefix = _read(connection, _PREFIX.size)
  magic, text_len, body_len = _PREFIX.unpack(prefix)
  if magic != MAGIC:
    raise Garbled(f'a message begins with {magic!r}, not {MAGIC!r}')
  _check_sizes(text_len, body_len, most)
  text = _read(connection, text_len)
  return decode(text, _read(connection, body_len))


def decode(text: bytes, body: bytes) -> tuple[Any, Any]:
  """Head and tree of a message; raises `Garbled`."""
  try:
    found = json.loads(text)
    head, tree, kinds = found['head'], found['tree'], found['arrays']
    arrays = _arrays(kinds, body)
    return head, _tree(tree, arrays)
  except (KeyError, TypeError, ValueError, RecursionError) as error:
    raise Garbled(f'a message cannot be read: {error}') from error


def _arrays(kinds, body):
  arrays, start = [], 0
  for dtype, shape in kinds:
    if dtype not in DTYPES:
      raise Garbled(f'arrays of {dtype} are not taken')
    if not all(type(size) is int and size >= 0 for size in shape):
      raise Garbled(f'{shape} is no shape')
    end = start + math.prod(shape) * np.dtype(dtype).itemsize
    if end > len(body):
      raise Garbled('arrays are cut short')
    # A copy of its own, which is aligned.
    array = np.frombuffer(body[start:end], dtype).reshape(shape)
    arrays.append(array)
    start = end
  if start != len(body):
    raise Garbled('bytes belong to no array')
  return arrays


def _tree(node, arrays):
  if node is None:
    return None
  if isinstance(node, str):
    return bare.Held(node)
  if isinstance(node, dict):
    return {key: _tree(part, arrays) for key, part in node.items()}
  if isinstance(node, list):
    return tuple(_tree(part, arrays) for part in node)
  if type(node) is not int or not 0 <= node < len(arrays):
    raise Garbled(f'{node!r} names no array')
  return arrays[node]


def _check_sizes(text_len, body_len, most=MOST_BYTES):
  if text_len > MOST_TEXT or body_len > most:
    raise Garbled(
      f'a message of {text_len} and {body_len} bytes: at most {MOST_TEXT} and'
      f' {most} are taken'
    )


def _read(connection, size):
  buffer = bytearray(size)
  view, done = memoryview(buffer), 0
  while done < size:
    count = connection.recv_into(view[done:])
    if not count:
      raise Closed('the other side is gone')
    done += count
  return bytes(buffer)
