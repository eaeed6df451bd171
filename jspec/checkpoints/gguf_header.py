# SPDX-License-Identifier: MIT
"""The header of a GGUF file: metadata, and where its tensors lie.

  magic, version, number of tensors, number of fields
  fields    name, type, value                      tokens and merges are here
  tensors   name, axes, type, place behind the header
  padding   up to a multiple of `general.alignment`

The layout is that of ggml (docs/gguf.md). The package `gguf` reads it, too, but
makes several arrays of every string: a vocabulary of 49,152 takes it seconds.
"""

import dataclasses
import math
import struct
from typing import Any

import gguf
import numpy as np

_VERSIONS = (2, 3)
_ALIGNMENT = 32
_TEXT, _LIST = 8, 9
# Of numbers, by their code.
_NUMBERS = {
  0: '<u1',
  1: '<i1',
  2: '<u2',
  3: '<i2',
  4: '<u4',
  5: '<i4',
  6: '<f4',
  7: '?',
  10: '<u8',
  11: '<i8',
  12: '<f8',
}
_MAX_AXES = 4


@dataclasses.dataclass(frozen=True)
class Tensor:
  """Where a tensor lies.

  Attributes:
    kind: its quantisation.
    shape: row-major, [out, in] of a matrix.
    start: the first byte in the file.
    row_bytes: of the last axis.
  """

  kind: gguf.GGMLQuantizationType
  shape: tuple[int, ...]
  start: int
  row_bytes: int

  @property
  def num_bytes(self) -> int:
    """Of the tensor."""
    return math.prod(self.shape[:-1]) * self.row_bytes


def parse(data: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
  """Reads a header.

  Args:
    data: of the whole file, bytes or a map of them.

  Returns:
    Fields as Python values, and tensors, by name.

  Raises:
    ValueError: it is cut off, or not as said above.
  """
  cursor = _Cursor(data)
  cursor.skip(4)
  version = cursor.number('<u4')
  if version not in _VERSIONS:
    known = ', '.join(map(str, _VERSIONS))
    raise ValueError(f'version {version}, of which only {known} are known')
  num_tensors, num_fields = cursor.number('<u8'), cursor.number('<u8')
  fields = {}
  for _ in range(num_fields):
    name = cursor.text()
    if name in fields:
      raise ValueError(f'field {name} is there twice')
    fields[name] = cursor.value(cursor.number('<u4'))
  found = {}
  for _ in range(num_tensors):
    name, *said = _tensor(cursor)
    if name in found:
      raise ValueError(f'tensor {name} is there twice')
    found[name] = said
  alignment = fields.get('general.alignment', _ALIGNMENT)
  if not isinstance(alignment, int) or alignment < 1:
    raise ValueError(f'general.alignment is {alignment!r}')
  begin = -(-cursor.at // alignment) * alignment
  return fields, {
    name: _placed(name, *said, begin, len(data)) for name, said in found.items()
  }


def _tensor(cursor):
  name, num_axes = cursor.text(), cursor.number('<u4')
  if num_axes > _MAX_AXES:
    raise ValueError(f'tensor {name} has {num_axes} axes')
  # GGUF lists the fastest axis first.
  shape = tuple(cursor.number('<u8') for _ in range(num_axes))[::-1]
  return name, shape, cursor.number('<u4'), cursor.number('<u8')


def _placed(name, shape, code, offset, begin, size):
  kind = gguf.GGMLQuantizationType(code)
  numbers, block = gguf.GGML_QUANT_SIZES[kind]
  width = shape[-1] if shape else 1
  if width % numbers:
    raise ValueError(f'rows of {name} are {width}, not blocks of {numbers}')
  tensor = Tensor(kind, shape, begin + offset, width // numbers * block)
  if tensor.start + tensor.num_bytes > size:
    raise ValueError(f'it ends within tensor {name}')
  return tensor


class _Cursor:
  """Takes one thing after the other."""

  def __init__(self, data: Any):
    self._data, self.at = data, 0

  def skip(self, count: int) -> int:
    """Goes on by so many bytes; returns where it was."""
    begin = self.at
    if begin + count > len(self._data):
      raise ValueError('it ends within the header')
    self.at += count
    return begin

  def number(self, dtype: str) -> Any:
    """A number."""
    return self._numbers(dtype, 1)[0]

  def text(self) -> str:
    """A string."""
    size = self.number('<u8')
    begin = self.skip(size)
    return self._data[begin : begin + size].decode('utf-8')

  def value(self, code: int) -> Any:
    """A value of a type."""
    if code == _TEXT:
      return self.text()
    if code != _LIST:
      return self._numbers(_dtype(code), 1)[0]
    code, count = self.number('<u4'), self.number('<u8')
    if code == _TEXT:
      return self._texts(count)
    return self._numbers(_dtype(code), count)

  def _numbers(self, dtype, count):
    begin = self.skip(count * np.dtype(dtype).itemsize)
    return np.frombuffer(self._data, dtype, count, begin).tolist()

  def _texts(self, count):
    # Vocabularies: as little as can be for each.
    data, at, end, found = self._data, self.at, len(self._data), []
    size_at = struct.Struct('<Q').unpack_from
    for _ in range(count):
      if at + 8 > end:
        raise ValueError('it ends within the header')
      begin = at + 8
      at = begin + size_at(data, at)[0]
      found.append(data[begin:at].decode('utf-8'))
    self.at = at
    self.skip(0)
    return found


def _dtype(code):
  if code not in _NUMBERS:
    raise ValueError(f'a field has values of type {code}, which is not known')
  return _NUMBERS[code]
