# SPDX-License-Identifier: MIT
"""The bytes of one document with its taps, as a store's record holds them.

  magic | crc32 of the rest | sizes | dtype | id | tokens | mask | scales | taps

Taps are float32, bfloat16, or int8 with one float32 scale a token and layer.
"""

import struct
import zlib

import ml_dtypes
import numpy as np

from jspec import errors
from jspec.data import examples

DTYPES = ('float32', 'bfloat16', 'int8')
# magic, crc32 of the rest, id bytes, S, C, D, index into DTYPES
_HEADER = struct.Struct('<4sIIIIII')
_MAGIC = b'TAPS'


def encode(
  document: examples.Document, states: np.ndarray, dtype: str
) -> bytes:
  """Writes a document and its taps [S, C, D].

  Raises:
    UserError: the taps are not finite.
  """
  length = len(document)
  if states.shape[0] != length:
    raise RuntimeError(
      f'{document.id} has {length} tokens and {states.shape[0]} rows of taps'
    )
  if not np.isfinite(states.astype(np.float32)).all():
    raise errors.UserError(
      f'the target gives states that are not finite for `{document.id}`'
    )
  name = document.id.encode()
  parts = [
    name,
    document.tokens.astype('<i4').tobytes(),
    document.is_answer.astype(np.uint8).tobytes(),
  ]
  if dtype == 'int8':
    exact = states.astype(np.float32)
    scales = np.abs(exact).max(axis=-1) / 127
    scales = np.where(scales > 0, scales, 1).astype('<f4')
    parts.append(scales.tobytes())
    parts.append(np.rint(exact / scales[..., None]).astype(np.int8).tobytes())
  else:
    parts.append(states.astype(_numpy_dtype(dtype)).tobytes())
  payload = b''.join(parts)
  header = _HEADER.pack(
    _MAGIC,
    zlib.crc32(payload),
    len(name),
    *states.shape,
    DTYPES.index(dtype),
  )
  return header + payload


def decode(record: bytes, where: str) -> tuple[examples.Document, np.ndarray]:
  """Reads what `encode` wrote; int8 is expanded to bfloat16.

  Raises:
    UserError: the record is damaged; `where` says which.
  """
  magic, checksum, name_len, s, c, d, code = _HEADER.unpack_from(record)
  payload = memoryview(record)[_HEADER.size :]
  if magic != _MAGIC or zlib.crc32(payload) != checksum:
    raise errors.UserError(
      f'{where} is damaged (checksum): capture the taps again'
    )
  dtype = DTYPES[code]
  offset = 0

  def take(kind, count):
    nonlocal offset
    values = np.frombuffer(payload, kind, count, offset)
    offset += values.nbytes
    return values

  name = bytes(take(np.uint8, name_len)).decode()
  tokens = take('<i4', s)
  is_answer = take(np.uint8, s).astype(bool)
  if dtype == 'int8':
    scales = take('<f4', s * c).reshape(s, c, 1)
    levels = take(np.int8, s * c * d).reshape(s, c, d)
    taps = (levels * scales).astype(ml_dtypes.bfloat16)
  else:
    taps = take(_numpy_dtype(dtype), s * c * d).reshape(s, c, d)
  return examples.Document(name, tokens, is_answer), taps


def _numpy_dtype(dtype):
  return np.dtype(ml_dtypes.bfloat16 if dtype == 'bfloat16' else '<f4')
