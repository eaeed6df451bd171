# SPDX-License-Identifier: MIT
"""One array of a model: which part of the files it is, and where it lies.

the files' array   [L, D, F]   of all layers, [gate | up]
a variable         [D, F]      of layer 3, in the order of shards
a place            [D, F / 8]  what one device, or several, hold of it
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from jspec.checkpoints import conversions, host_memory
from jspec.nn import fused
from jspec.typing import Array

# A part, and the devices that hold it; None is the first one.
Place = tuple[conversions.Box, list[Any]]


@dataclasses.dataclass(frozen=True)
class Variable:
  """An array of a model.

  Attributes:
    reader: `reading.Reader` of the files.
    name: of the array in `architecture.array_shapes`.
    rows: which rows of that array it holds; a number for one layer without the
      axis, None for an array outside layers.
    layout: of the model, what `sharding.Layout` has; None on one device.
    empty: makes the arrays of the host, as `host_memory.empty`.
    num_threads: that read a part; None: as many as there are cores.
  """

  reader: Any
  name: str
  rows: list[int] | int | None
  layout: Any
  empty: Callable[..., np.ndarray] = host_memory.empty
  num_threads: int | None = None

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the variable."""
    shape = self.reader.shapes[self.name]
    if self.rows is None:
      return shape
    return (
      shape[1:]
      if isinstance(self.rows, int)
      else (
        len(self.rows),
        *shape[1:],
      )
    )

  def lies(self, shape: tuple[int, ...]) -> NamedSharding | None:
    """How an array of that shape lies; an axis of 1 instead lies whole."""
    if self.layout is None:
      return None
    is_row = isinstance(self.rows, int)
    lies = self.layout.sharding(self.name, self.shape, is_row=is_row)
    axes = [
      None if n == 1 else axis
      for axis, n in zip(lies.spec, shape, strict=False)
    ]
    return NamedSharding(lies.mesh, PartitionSpec(*axes))

  def read(self, box: conversions.Box, out: np.ndarray) -> None:
    """Reads a part, its columns in the order of shards.

    Args:
      box: the part, a slice with both ends for each axis.
      out: where to, of any float dtype.
    """
    widths, num_shards = self.shape[-1:], 1
    if self.layout is not None:
      widths, num_shards = self.layout.order.get(self.name, (widths, 1))
    at, last = 0, box[-1]
    for start, stop in fused.spans(widths, num_shards, last.start, last.stop):
      columns = out[..., at : at + stop - start]
      self._read_rows((*box[:-1], slice(start, stop)), columns)
      at += stop - start

  def _read_rows(self, box, out):
    name, rows = self.name, self.rows
    read = functools.partial(self.reader.read, num_threads=self.num_threads)
    if rows is None:
      read(name, box, out)
    elif isinstance(rows, int):
      read(name, (slice(rows, rows + 1), *box), out[None])
    elif rows == list(range(rows[0], rows[0] + len(rows))):
      part = slice(rows[0] + box[0].start, rows[0] + box[0].stop)
      read(name, (part, *box[1:]), out)
    else:
      for i, row in enumerate(rows[box[0]]):
        read(name, (slice(row, row + 1), *box[1:]), out[i : i + 1])


def places(shape: tuple[int, ...], lies: NamedSharding | None) -> list[Place]:
  """The parts of an array that devices of this process hold, and which do."""
  if lies is None:
    return [(tuple(slice(0, size) for size in shape), [None])]
  found = {}
  for device, index in lies.addressable_devices_indices_map(shape).items():
    ends = tuple(
      part.indices(size)[:2] for part, size in zip(index, shape, strict=True)
    )
    found.setdefault(ends, []).append(device)
  return [
    (tuple(slice(*end) for end in ends), devices)
    for ends, devices in found.items()
  ]


def sizes(box: conversions.Box) -> tuple[int, ...]:
  """The shape of a part."""
  return tuple(part.stop - part.start for part in box)


def put(host: np.ndarray, devices: Sequence[Any]) -> list[Array]:
  """A part on its devices; until it is there, the host's copy is, too."""
  return jax.block_until_ready([jax.device_put(host, one) for one in devices])


def assembled(
  shape: tuple[int, ...], lies: NamedSharding | None, shards: list[Array]
) -> Array:
  """The array of parts that were put."""
  if lies is None:
    return shards[0]
  return jax.make_array_from_single_device_arrays(shape, lies, shards)
