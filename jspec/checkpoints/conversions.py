# SPDX-License-Identifier: MIT
"""What is done to a tensor on the way from disk to a leaf, and back.

A conversion also says which part of the tensor a part of the result is made of,
so that a shard is read without the rest:

  transpose    result[a:b, c:d]  is  disk[c:d, a:b].T
  by_head      result[:, 3:5]    is in  disk[0:16]     whole heads of 16 alone

A plain function may stand for a conversion; it is given whole tensors, and
nothing leads back.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

Box = tuple[slice, ...]


@dataclasses.dataclass(frozen=True)
class Conversion:
  """A function on tensors, its inverse, and how parts of them correspond.

  Attributes:
    to_leaf: from the tensor on disk to the values of a leaf.
    to_file: the way back.
    is_turned: whether the axes on disk are those of the values in reverse.
    units: for each axis of the values, what a part must begin and end at
      multiples of to be converted by itself; 0: only all of the axis can be.
      Axes that are not listed may be cut anywhere.
    keeps_axes: whether there are as many axes, in that order or in reverse; if
      not, only whole tensors can be converted.
    only_moves: whether the numbers themselves stay as they are.
    moves: how rows on disk change places, before they are turned if they are,
      where that is all of `to_leaf`; it takes their bytes as well as numbers.
  """

  to_leaf: Callable[[np.ndarray], np.ndarray]
  to_file: Callable[[np.ndarray], np.ndarray]
  is_turned: bool = False
  units: tuple[int, ...] = ()
  keeps_axes: bool = True
  only_moves: bool = True
  moves: Callable[[np.ndarray], np.ndarray] | None = None

  def __call__(self, values: np.ndarray) -> np.ndarray:
    """From the tensor on disk to the values of a leaf."""
    return self.to_leaf(values)

  def sources(self, box: Box, shape: tuple[int, ...]) -> tuple[Box, Box] | None:
    """What to read for a part of the values.

    Args:
      box: the part, a slice with both ends for each axis.
      shape: of all values.

    Returns:
      What of the tensor on disk to read and convert, and where in the result
      the part is; None where it takes all of the tensor.
    """
    if not self.keeps_axes:
      return None
    units = self.units + (1,) * (len(box) - len(self.units))
    wide = tuple(
      slice(0, size)
      if not unit
      else slice(part.start // unit * unit, -(-part.stop // unit) * unit)
      for part, unit, size in zip(box, units, shape, strict=True)
    )
    rest = tuple(
      slice(part.start - whole.start, part.stop - whole.start)
      for part, whole in zip(box, wide, strict=True)
    )
    return (wide[::-1] if self.is_turned else wide), rest


def _same(values: np.ndarray) -> np.ndarray:
  return values


def _turned(values: np.ndarray) -> np.ndarray:
  return values.T


identity = Conversion(_same, _same, moves=_same)
# [out, in] as [in, out].
transpose = Conversion(_turned, _turned, is_turned=True, moves=_same)
# A gain w that is applied as 1 + w.
plus_one = Conversion(
  lambda gain: gain.astype(np.float32) + 1,
  lambda gain: gain.astype(np.float32) - 1,
  only_moves=False,
)
