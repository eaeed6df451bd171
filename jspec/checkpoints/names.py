# SPDX-License-Identifier: MIT
"""Rename tables: how the tensors of a checkpoint become the leaves of a model.

A table is a list of `Rule`s. Each names one source tensor, the leaf it fills,
the box inside that leaf, and what to do to the values on the way:

  Rule('layers.3.mlp.up_proj.weight', 'gate_up', (3, ALL, slice(F, 2 * F)),
       transpose)      # [F, D] on disk  ->  gate_up[3, :, F:2F]

`fill` refuses a checkpoint unless every source tensor is used exactly once and
every element of every leaf is written exactly once; all that is wrong is
reported in one message, before a single value is read. Leaves are allocated
once and filled tensor by tensor, so the peak is the model plus one tensor.
"""

import collections
import dataclasses
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from jspec import errors
from jspec.checkpoints import conversions

ALL = slice(None)
identity, transpose = conversions.identity, conversions.transpose

# More than this many findings are counted instead of listed.
_MAX_LISTED = 12


@runtime_checkable
class Source(Protocol):
  """A checkpoint that is open for reading, tensor by tensor."""

  where: str

  def names(self) -> Collection[str]:
    """The names of all tensors."""

  def shape(self, name: str) -> tuple[int, ...]:
    """The shape of a tensor, known without reading it."""

  def read(self, name: str) -> np.ndarray:
    """The values of a tensor."""

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """Those in a box, a slice with both ends for each axis.

    They may be of the dtype on disk, and a view of the file.
    """


@runtime_checkable
class Packed(Source, Protocol):
  """A source whose tensors are of few bits, which it decodes."""

  def columns(
    self,
    name: str,
    box: conversions.Box,
    moves: Callable[[np.ndarray], np.ndarray],
    out: np.ndarray,
  ) -> bool:
    """Decodes rows of a matrix straight into columns.

    Args:
      name: of the tensor.
      box: rows and what of them, slices with both ends.
      moves: changes places of rows, see `conversions.Conversion`.
      out: where to, [what of them, rows], of any float dtype.

    Returns:
      Whether it has; if not, `part` gives the values.
    """


@dataclasses.dataclass(frozen=True)
class Held:
  """A `Source` whose tensors are in memory."""

  where: str
  tensors: Mapping[str, np.ndarray]

  def names(self) -> Collection[str]:
    """See `Source`."""
    return self.tensors.keys()

  def shape(self, name: str) -> tuple[int, ...]:
    """See `Source`."""
    return self.tensors[name].shape

  def read(self, name: str) -> np.ndarray:
    """See `Source`."""
    return self.tensors[name]

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """See `Source`."""
    return self.tensors[name][box]


@dataclasses.dataclass(frozen=True)
class Renamed:
  """Some tensors of a `Source` under other names; the rest is not there.

  Attributes:
    where: as of the source.
    source: who holds them.
    called: the source's name of each tensor.
  """

  where: str
  source: Source
  called: Mapping[str, str]

  def names(self) -> Collection[str]:
    """See `Source`."""
    return self.called.keys()

  def shape(self, name: str) -> tuple[int, ...]:
    """See `Source`."""
    return self.source.shape(self.called[name])

  def read(self, name: str) -> np.ndarray:
    """See `Source`."""
    return self.source.read(self.called[name])

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """See `Source`."""
    return self.source.part(self.called[name], box)


@dataclasses.dataclass(frozen=True)
class Rule:
  """One source tensor and the box of a leaf that it fills.

  Attributes:
    source: name in the checkpoint.
    leaf: name in the model.
    box: one int or slice (step 1) for each leading axis of the leaf.
    convert: from the tensor on disk to the values of the box.
    shape: the shape on disk; None derives it: the box's, reversed by
      `transpose`, and kept by anything else.
    is_rounded: whether a checkpoint may hold it in bfloat16.
  """

  source: str
  leaf: str
  box: tuple[int | slice, ...] = ()
  convert: Callable[[np.ndarray], np.ndarray] = identity
  shape: tuple[int, ...] | None = None
  is_rounded: bool = True


def fill(
  rules: Iterable[Rule],
  source: Source,
  shapes: Mapping[str, tuple[int, ...]],
  *,
  ignored: Collection[str] = (),
  dtype: np.dtype | type = np.float32,
  on_tensor: Callable[[int, int], None] | None = None,
) -> dict[str, np.ndarray]:
  """Reads a checkpoint into freshly allocated leaves.

  Args:
    rules: the table.
    source: the checkpoint.
    shapes: shape of every leaf.
    ignored: source tensors that are knowingly not used.
    dtype: of the leaves.
    on_tensor: called with (tensors read, tensors in all), for a progress bar.

  Returns:
    The leaves by name.

  Raises:
    errors.UserError: with every missing, unknown, doubly used or wrongly shaped
      tensor and every leaf that is not filled exactly once.
  """
  rules = list(rules)
  must_fit(rules, source, shapes, ignored=ignored)
  leaves = {name: np.empty(shape, dtype) for name, shape in shapes.items()}
  for i, rule in enumerate(rules):
    leaves[rule.leaf][rule.box] = rule.convert(source.read(rule.source))
    if on_tensor is not None:
      on_tensor(i + 1, len(rules))
  return leaves


def must_fit(
  rules: Collection[Rule],
  source: Source,
  shapes: Mapping[str, tuple[int, ...]],
  *,
  ignored: Collection[str] = (),
) -> None:
  """Refuses a checkpoint that the table does not fit; see `fill`."""
  problems = check(rules, source, shapes, ignored=ignored)
  if problems:
    raise errors.UserError(_report(source.where, problems))


def check(
  rules: Collection[Rule],
  source: Source,
  shapes: Mapping[str, tuple[int, ...]],
  *,
  ignored: Collection[str] = (),
) -> list[str]:
  """Returns all that keeps a table from fitting a checkpoint and a model."""
  names = set(source.names())
  uses = collections.Counter(rule.source for rule in rules)
  problems = [f'tensor {n} is missing' for n in sorted(uses.keys() - names)]
  unknown = names - uses.keys() - set(ignored)
  problems += [f'tensor {n} is not known' for n in sorted(unknown)]
  problems += [
    f'tensor {n} is used {k} times' for n, k in uses.items() if k > 1
  ]
  boxes = collections.defaultdict(list)
  for rule in rules:
    if rule.leaf not in shapes:
      problems.append(f'tensor {rule.source} is for no leaf {rule.leaf}')
      continue
    bounds, box_shape = bounds_of(rule.box, shapes[rule.leaf])
    boxes[rule.leaf].append(bounds)
    want = rule.shape
    if want is None:
      want = box_shape[::-1] if rule.convert is transpose else box_shape
    if rule.source in names and source.shape(rule.source) != want:
      have = source.shape(rule.source)
      problems.append(f'tensor {rule.source} has shape {have}, not {want}')
  for leaf, shape in shapes.items():
    if not _is_tiled(boxes[leaf], shape):
      problems.append(f'leaf {leaf} {shape} is not filled exactly once')
  return problems


def bounds_of(
  box: tuple[int | slice, ...], shape: tuple[int, ...]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
  """Returns (start, stop) on every axis, and the shape left after indexing."""
  bounds, left = [], []
  full = box + (ALL,) * (len(shape) - len(box))
  for part, size in zip(full, shape, strict=True):
    if isinstance(part, slice):
      start, stop, step = part.indices(size)
      if step != 1:
        raise ValueError(f'a box takes slices of step 1, not {part}')
      left.append(stop - start)
    else:
      start, stop = part, part + 1
    bounds.append((start, stop))
  return tuple(bounds), tuple(left)


def _is_tiled(
  boxes: list[tuple[tuple[int, int], ...]], shape: tuple[int, ...]
) -> bool:
  """Whether boxes inside `shape` cover it without an overlap."""
  volume = sum(math.prod(stop - start for start, stop in b) for b in boxes)
  return volume == math.prod(shape) and _are_apart(boxes)


def _are_apart(boxes: list[tuple[tuple[int, int], ...]]) -> bool:
  """Whether no two boxes overlap; one axis at a time, for there are many."""
  if len(boxes) < 2:
    return True
  if not boxes[0]:
    return False
  by_first = collections.defaultdict(list)
  for first, *rest in boxes:
    by_first[first].append(tuple(rest))
  spans = sorted(by_first)
  if all(a[1] <= b[0] for a, b in itertools.pairwise(spans)):
    return all(map(_are_apart, by_first.values()))
  return all(
    any(a[0] >= b[1] or b[0] >= a[1] for a, b in zip(one, other, strict=True))
    for one, other in itertools.combinations(boxes, 2)
  )


def _report(where: str, problems: list[str]) -> str:
  listed = '; '.join(problems[:_MAX_LISTED])
  more = len(problems) - _MAX_LISTED
  tail = f'; and {more} more' if more > 0 else ''
  return f'{where} does not fit the model: {listed}{tail}'
