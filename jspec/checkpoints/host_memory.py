# SPDX-License-Identifier: MIT
"""Arrays of the host on their way to a device: memory, and copies into it.

A CPU is a device whose memory is the host's: XLA takes a buffer as it is where
it begins at a multiple of 64 bytes.
"""

import os
import threading

import numpy as np

_MAX_THREADS = 16
# Rows of a tensor that become columns at once, fewer where they are so long
# that they would leave the cache meanwhile.
_ROWS, _FEWEST_ROWS = 128, 16
_ROWS_BYTES = 1 << 19
_ALIGNMENT = 64
_PIECE_BYTES = 1 << 26


def copy(values: np.ndarray, view: np.ndarray) -> None:
  """Copies values, of which one may lie turned, to where they belong.

  Args:
    values: of any shape and dtype.
    view: likewise; of a matrix, either may be columns in memory.
  """
  is_same = values.dtype == view.dtype
  if is_same and values.itemsize == 2:
    # As a type of numpy's own, which it moves without the interpreter's lock.
    values, view = values.view(np.uint16), view.view(np.uint16)
  if values.ndim != 2 or is_turned(values) == is_turned(view):
    view[...] = values
    return
  if is_turned(view):
    values, view = values.T, view.T
  length, size = values.shape
  step = _ROWS_BYTES // max(1, length * values.itemsize)
  step = min(_ROWS, max(_FEWEST_ROWS, step))
  # From four bytes on it makes no difference, and is a copy less.
  is_direct = is_same and values.itemsize >= 4
  rows = np.empty((length, min(size, step)), values.dtype)
  for i in range(0, size, step):
    part = values[:, i : i + step]
    if is_direct:
      view[:, i : i + step] = part
      continue
    turned = rows[:, : part.shape[1]]
    _moved(turned)[...] = _moved(part)
    view[:, i : i + step] = turned


def is_turned(values: np.ndarray) -> bool:
  """Whether the numbers of a column of a matrix are neighbours."""
  return values.ndim == 2 and values.strides[0] < values.strides[1]


def _moved(values):
  """The same for who only moves them; see `copy`."""
  return values.view(np.uint16) if values.itemsize == 2 else values


def threads() -> int:
  """How many are worth their while."""
  return min(_MAX_THREADS, os.cpu_count() or 1)


class Arena:
  """Memory for many arrays, in pieces that the system gives as large pages.

  First use of a page of 4 KB costs more than to write it; a piece of numpy's
  that is large enough gets pages of 2 MB, where there are some. A piece is
  free again when the last array in it is.
  """

  def __init__(self, num_bytes: int):
    """Expects arrays of so many bytes in all; more is no error."""
    self._left = num_bytes
    self._piece = np.empty(0, np.uint8)
    self._lock = threading.Lock()

  def empty(self, shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
    """An array that a CPU backend of XLA takes without copying it."""
    num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    taken = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    with self._lock:
      if taken > self._piece.size:
        size = max(taken, min(_PIECE_BYTES, self._left))
        self._piece = empty((size,), np.uint8)
      found, self._piece = self._piece[:num_bytes], self._piece[taken:]
      self._left -= taken
    return found.view(dtype).reshape(shape)


def empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
  """An array that a CPU backend of XLA takes without copying it."""
  num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  flat = np.empty(num_bytes + _ALIGNMENT, np.uint8)
  skip = -flat.ctypes.data % _ALIGNMENT
  return flat[skip : skip + num_bytes].view(dtype).reshape(shape)
