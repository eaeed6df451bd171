# SPDX-License-Identifier: MIT
"""Reads GGUF files: metadata, and tensors dequantised to float32 one at a time.

Quantised blocks are decoded by `gguf.quants.dequantize`, the reference of
llama.cpp in numpy, e.g. Q4_1: 32 values share (scale, minimum), w = d * q + m.
What the names mean is the business of the family (`targets/gguf_model.py`);
a quantisation that was never tested here is refused by name.
"""

import math
import mmap
import pathlib
from collections.abc import Callable, Collection

import gguf
import numpy as np

from jspec import errors
from jspec.checkpoints import conversions, gguf_columns, gguf_header

QUANTIZATIONS = (
  'F32',
  'F16',
  'BF16',
  'Q8_0',
  'Q4_0',
  'Q4_1',
  'Q5_0',
  'Q5_1',
  'Q4_K',
  'Q5_K',
  'Q6_K',
)
# Numbers of a row for the package; sixteen such rows stay in a cache.
_LONG_ROW = 1 << 13


class GGUFFile:
  """An open GGUF file: a `names.Source` with `metadata`.

  Attributes:
    where: the path, for messages.
    metadata: the key-value pairs as Python values.
  """

  def __init__(self, path: str | pathlib.Path):
    """Opens a file and reads its header; tensors stay on disk."""
    path = pathlib.Path(path)
    self.where = str(path)
    if not path.is_file():
      raise errors.UserError(f'{path}: no such file; give a .gguf file')
    with path.open('rb') as stream:
      if stream.read(4) != b'GGUF':
        raise errors.UserError(f'{path} is not a GGUF file (no GGUF magic)')
      data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    try:
      self.metadata, self._tensors = gguf_header.parse(data)
    except ValueError as error:
      raise errors.UserError(
        f'{path} is truncated or not readable as GGUF ({error}); fetch it again'
      ) from error
    self._bytes = np.frombuffer(data, np.uint8)
    self._check_types()

  def _check_types(self) -> None:
    refused = sorted(
      {
        tensor.kind.name
        for tensor in self._tensors.values()
        if tensor.kind.name not in QUANTIZATIONS
      }
    )
    if refused:
      raise errors.UserError(
        f'{self.where}: quantisation {", ".join(refused)} is not supported;'
        f' use one of {", ".join(QUANTIZATIONS)}'
      )

  def names(self) -> Collection[str]:
    """Returns the names of all tensors."""
    return self._tensors.keys()

  def shape(self, name: str) -> tuple[int, ...]:
    """Returns a shape in row-major order, [out, in] for a matrix."""
    return self._tensors[name].shape

  def read(self, name: str) -> np.ndarray:
    """Returns a tensor as float32."""
    every = tuple(slice(0, size) for size in self.shape(name))
    return self.part(name, every)

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """Returns what of a tensor is in a box; only its rows are dequantised."""
    tensor = self._tensors[name]
    rows, *rest = box
    shape = rows.stop - rows.start, *self.shape(name)[1:]
    data = self._stored(tensor)
    data = _in_long_rows(data[rows] if rest else data, math.prod(shape[1:]))
    values = gguf.quants.dequantize(data, tensor.kind)
    if not rest:
      values, shape = values[rows], shape[:1]
    values = values.astype(np.float32, copy=False).reshape(shape)
    return values[(slice(None), *rest)]

  def columns(
    self,
    name: str,
    box: conversions.Box,
    moves: Callable[[np.ndarray], np.ndarray],
    out: np.ndarray,
  ) -> bool:
    """See `names.Packed`."""
    tensor = self._tensors[name]
    rows, inside = box
    is_whole = (inside.start, inside.stop) == (0, tensor.shape[1])
    is_known = tensor.kind.name in gguf_columns.KINDS
    if not (is_whole and is_known and out.dtype == np.float32):
      return False
    data = moves(self._stored(tensor)[rows])
    gguf_columns.write(data, tensor.kind.name, out)
    return True

  def _stored(self, tensor):
    """The bytes of a tensor, those of a row on the last axis."""
    found = self._bytes[tensor.start : tensor.start + tensor.num_bytes]
    return found.reshape(*tensor.shape[:-1], tensor.row_bytes)


def _in_long_rows(data, width):
  """The same bytes in fewer rows: the package works on 16 of them at once."""
  count = data.shape[0]
  together = max(1, min(count, _LONG_ROW // max(width, 1)))
  while count % together:
    together -= 1
  return data.reshape(count // together, -1) if data.ndim == 2 else data
