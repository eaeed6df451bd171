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
from collections.abc import Collection, Mapping

import numpy as np

from jspec.checkpoints import conversions, host_memory, names

# What is larger is cut, that every thread has a piece.
_LARGE_BYTES = 1 << 24
# Numbers of a tensor of few bits that are floats at once.
_DECODED = 1 << 17


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

  def read(
    self,
    leaf: str,
    box: conversions.Box,
    out: np.ndarray,
    *,
    num_threads: int | None = None,
  ) -> None:
    """Reads a part of a leaf.

    Args:
      leaf: its name.
      box: the part, a slice with both ends for each axis.
      out: where to, of any float dtype.
      num_threads: that share the work; None: as many as there are cores.
    """
    workers = num_threads or host_memory.threads()
    jobs = [
      (*one, part, out[at])
      for part, at in _cut(box, workers if out.nbytes > _LARGE_BYTES else 1)
      for one in self._wanted(leaf, part)
    ]
    if len(jobs) == 1 or workers == 1:
      for job in jobs:
        self._read_one(*job)
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
    view, inside = out[tuple(at)], tuple(inside)
    found = None
    if isinstance(rule.convert, conversions.Conversion):
      found = rule.convert.sources(inside, shape)
    if found is None:
      host_memory.copy(
        rule.convert(self._source.read(rule.source))[inside], view
      )
      return
    on_disk, rest = found
    if isinstance(self._source, names.Packed):
      if self._has_decoded(rule, on_disk, view):
        return
      if rule.convert is conversions.identity and view.ndim == 2:
        self._decode_rows(rule, on_disk, view)
        return
    host_memory.copy(
      rule.convert(self._source.part(rule.source, on_disk))[rest], view
    )

  def _has_decoded(self, rule, on_disk, view):
    """Has the source write columns, where it knows how and no more is asked."""
    moves = rule.convert.moves
    if moves is None or view.ndim != 2:
      return False
    # Rows that a view takes as columns, of a head that is the embedding.
    columns = view if rule.convert.is_turned else view.T
    sizes = tuple(part.stop - part.start for part in on_disk)
    if sizes != columns.shape[::-1] or host_memory.is_turned(columns):
      return False
    return self._source.columns(rule.source, on_disk, moves, columns)

  def _decode_rows(self, rule, on_disk, view):
    """A few rows at a time, whose floats stay in a cache."""
    rows, *rest = on_disk
    step = max(1, _DECODED // max(1, view.shape[1]))
    for start in range(rows.start, rows.stop, step):
      some = slice(start, min(start + step, rows.stop))
      at = slice(some.start - rows.start, some.stop - rows.start)
      host_memory.copy(self._source.part(rule.source, (some, *rest)), view[at])


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
