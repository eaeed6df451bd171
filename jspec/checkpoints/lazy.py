# SPDX-License-Identifier: MIT
"""Leaves read a part at a time, straight from the tensors of a checkpoint.

  tensors on disk   q0 [Q, D]   k0 [K, D]   v0 [K, D]   q1 ...
  the leaf          qkv [L, D, Q + 2K]
  a part of it      qkv[:, :, 40:60]: those rows of those tensors, no others

Whoever puts a model on a mesh asks for the shards of one device after another,
so the host holds one of them, and of a tensor the few rows under way. Tensors
that cannot be converted in parts (`checkpoints.conversions`) are read whole.
"""

import bisect
import concurrent.futures
import itertools
import os
from collections.abc import Collection, Mapping

import numpy as np

from jspec.checkpoints import conversions, names

# Rows of a tensor that become columns at once; 16 take numpy twice the time.
_ROWS = 8
_MAX_THREADS = 16
# What is larger is cut, that every thread has a piece.
_LARGE_BYTES = 1 << 24
# XLA takes a buffer of a CPU as it is where it begins at a multiple of this.
_ALIGNMENT = 64


class Leaves:
  """The leaves that a table fills, none of them read yet."""

  def __init__(
    self,
    rules: Collection[names.Rule],
    source: names.Source,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    ignored: Collection[str] = (),
  ):
    """Checks the table; see `names.fill`.

    Args:
      rules: the table.
      source: the checkpoint.
      shapes: shape of every leaf.
      ignored: source tensors that are knowingly not used.

    Raises:
      errors.UserError: as `names.fill`.
    """
    names.must_fit(rules, source, shapes, ignored=ignored)
    self._source, self._shapes = source, shapes
    of_leaf: dict[str, list] = {name: [] for name in shapes}
    for rule in rules:
      bounds, _ = names.bounds_of(rule.box, shapes[rule.leaf])
      of_leaf[rule.leaf].append((bounds, rule))
    # By the first axis, which of layers is the layer.
    self._rules = {
      name: sorted(found, key=lambda pair: pair[0])
      for name, found in of_leaf.items()
    }
    self._ends = {
      name: [bounds[0][1] if bounds else 0 for bounds, _ in found]
      for name, found in self._rules.items()
    }

  def read(self, leaf: str, box: conversions.Box, out: np.ndarray) -> None:
    """Reads a part of a leaf.

    Args:
      leaf: its name.
      box: the part, a slice with both ends for each axis.
      out: where to, of any float dtype.
    """
    workers = min(_MAX_THREADS, os.cpu_count() or 1)
    jobs = [
      (*one, part, out[at])
      for part, at in _cut(box, workers if out.nbytes > _LARGE_BYTES else 1)
      for one in self._wanted(leaf, part)
    ]
    if len(jobs) == 1:
      self._read_one(*jobs[0])
      return
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
      for _ in pool.map(lambda job: self._read_one(*job), jobs):
        pass

  def _wanted(self, leaf, box):
    """The rules that write to a part."""
    found = self._rules[leaf]
    if not box:
      return found
    first = bisect.bisect_right(self._ends[leaf], box[0].start)
    wanted = []
    for bounds, rule in found[first:]:
      if bounds[0][0] >= box[0].stop:
        break
      if all(
        start < part.stop and part.start < stop
        for (start, stop), part in zip(bounds, box, strict=True)
      ):
        wanted.append((bounds, rule))
    return wanted

  def _read_one(self, bounds, rule, box, out):
    """Reads what a rule writes to a part."""
    at, inside = [], []
    full = rule.box + (names.ALL,) * (len(box) - len(rule.box))
    for (start, stop), part, own in zip(bounds, box, full, strict=True):
      first, last = max(start, part.start), min(stop, part.stop)
      if isinstance(own, int):
        at.append(first - part.start)
      else:
        at.append(slice(first - part.start, last - part.start))
        inside.append(slice(first - start, last - start))
    shape = tuple(
      stop - start
      for (start, stop), own in zip(bounds, full, strict=True)
      if not isinstance(own, int)
    )
    _copy(self._values(rule, tuple(inside), shape), out[tuple(at)])

  def _values(self, rule, box, shape):
    """The converted values of a part, a view where that is enough."""
    convert = rule.convert
    found = None
    if isinstance(convert, conversions.Conversion):
      found = convert.sources(box, shape)
    if found is None:
      return convert(self._source.read(rule.source))[box]
    on_disk, rest = found
    return convert(self._source.part(rule.source, on_disk))[rest]


def _cut(box, count):
  """A part in pieces along its longest axis, and where in it each is."""
  sizes = [part.stop - part.start for part in box]
  if not sizes or count == 1:
    return [(box, ())]
  axis = sizes.index(max(sizes))
  first = box[axis].start
  ends = [sizes[axis] * i // count for i in range(count + 1)]
  pieces = []
  for start, stop in itertools.pairwise(ends):
    own = slice(first + start, first + stop)
    at = (names.ALL,) * axis + (slice(start, stop),)
    pieces.append(((*box[:axis], own, *box[axis + 1 :]), at))
  return pieces


def _copy(values, view):
  """Copies values, which may lie on disk as columns, to where they belong."""
  if values.ndim != 2 or values.flags.c_contiguous:
    view[...] = values
    return
  for i in range(0, values.shape[1], _ROWS):
    rows = values[:, i : i + _ROWS].T
    view[:, i : i + _ROWS] = rows.astype(view.dtype, copy=False).T


def empty(shape: tuple[int, ...], dtype: np.dtype | type) -> np.ndarray:
  """An array that a CPU backend of XLA takes without copying it."""
  num_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
  flat = np.empty(num_bytes + _ALIGNMENT, np.uint8)
  skip = -flat.ctypes.data % _ALIGNMENT
  return flat[skip : skip + num_bytes].view(dtype).reshape(shape)
