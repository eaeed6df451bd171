# SPDX-License-Identifier: MIT
"""MXFP4 tensors of a checkpoint, dequantised when they are read.

A tensor X [E, D, F] is stored as X_blocks and X_scales, the other way round and
32 values a block (OCP Microscaling Formats, version 1.0, section 5):

  X_blocks  uint8 [E, F, D / 32, 16]   two values a byte, the lower half first
  X_scales  uint8 [E, F, D / 32]       exponent of the block, plus 127

A value has a sign, two bits of exponent and one of mantissa (E2M1).
"""

from collections.abc import Collection

import numpy as np

from jspec import errors
from jspec.checkpoints import conversions, names

_POSITIVE = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
VALUES = np.concatenate([_POSITIVE, -_POSITIVE])
_BLOCKS, _SCALES = '_blocks', '_scales'
_BLOCK = 16  # Bytes.


class Dequantised:
  """A `names.Source` with every pair of blocks and scales as one tensor."""

  def __init__(self, source: names.Source):
    """Looks for pairs; a source without any is as it was.

    Raises:
      errors.UserError: a half of a pair, or shapes that are not of one.
    """
    self.where, self._source = source.where, source
    present = set(source.names())
    self._packed = {
      name.removesuffix(_BLOCKS) for name in present if name.endswith(_BLOCKS)
    }
    scaled = {
      name.removesuffix(_SCALES) for name in present if name.endswith(_SCALES)
    }
    for name in sorted(self._packed ^ scaled):
      raise errors.UserError(
        f'{self.where}: tensor {name} has not both {_BLOCKS} and {_SCALES};'
        ' fetch the folder again'
      )
    for name in sorted(self._packed):
      blocks = source.shape(name + _BLOCKS)
      scales = source.shape(name + _SCALES)
      if blocks[:-1] != scales or blocks[-1] != _BLOCK or len(blocks) != 4:
        raise errors.UserError(
          f'{self.where}: tensor {name} has blocks {blocks} and scales'
          f' {scales}, which is not MXFP4 in blocks of 32'
        )
    self._names = self._packed | {
      name for name in present if not name.endswith((_BLOCKS, _SCALES))
    }

  def names(self) -> Collection[str]:
    """See `names.Source`."""
    return self._names

  def shape(self, name: str) -> tuple[int, ...]:
    """See `names.Source`."""
    if name not in self._packed:
      return self._source.shape(name)
    experts, columns, groups = self._source.shape(name + _SCALES)
    return experts, 2 * _BLOCK * groups, columns

  def read(self, name: str) -> np.ndarray:
    """See `names.Source`."""
    if name not in self._packed:
      return self._source.read(name)
    every = tuple(slice(0, size) for size in self.shape(name))
    return self.part(name, every)

  def part(self, name: str, box: conversions.Box) -> np.ndarray:
    """See `names.Source`."""
    if name not in self._packed:
      return self._source.part(name, box)
    experts, rows, columns = box
    whole = self._source.shape(name + _BLOCKS)
    rest = tuple(slice(0, size) for size in whole[2:])
    blocks = self._source.part(name + _BLOCKS, (experts, columns, *rest))
    scales = self._source.part(name + _SCALES, (experts, columns, rest[0]))
    sizes = tuple(part.stop - part.start for part in box)
    out = np.empty(sizes, np.float32)
    # One expert at a time: all of them in float32 twice over are gigabytes.
    for matrix, block, scale in zip(out, blocks, scales, strict=True):
      halves = np.stack([block & 15, block >> 4], axis=-1)
      values = VALUES[halves.reshape(*scale.shape, -1)]
      exponents = scale.astype(np.int32)[..., None] - 127
      whole = np.ldexp(values, exponents).reshape(len(block), -1).T
      matrix[...] = whole[rows]
    return out
