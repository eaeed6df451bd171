# SPDX-License-Identifier: MIT
"""Several matrices side by side in one, so that one matmul does for all.

  [a | b | c]                              columns of the fused matrix
  [a0 b0 c0 | a1 b1 c1 | ...]              the same on shards 0, 1, ...

Sharing out the columns of the first over devices would cut anywhere: one device
gets queries, another keys. In the second every shard holds its own part of each
matrix, and taking the parts apart moves nothing between devices. On one shard
both are the same.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.nn import qarray, spread, tiles
from jspec.typing import Array


def interleave(
  weight: np.ndarray | qarray.Weight, widths: tuple[int, ...], num_shards: int
) -> np.ndarray | qarray.Weight:
  """The columns (last axis) of a fused matrix in the order of shards.

  Args:
    weight: [..., sum of widths], [a | b | c].
    widths: columns of each part; they divide by `num_shards`.
    num_shards: 1 changes nothing.
  """
  if num_shards == 1:
    return weight
  begins = np.cumsum((0, *widths[:-1]))
  order = [
    begin + np.arange(width).reshape(num_shards, -1)
    for begin, width in zip(begins, widths, strict=True)
  ]
  return weight[..., np.concatenate(order, axis=1).reshape(-1)]


def spans(
  widths: tuple[int, ...], num_shards: int, start: int, stop: int
) -> list[tuple[int, int]]:
  """Where columns of an interleaved matrix are in [a | b | c].

  Args:
    widths: as of `interleave`.
    num_shards: as of `interleave`.
    start: the first column of the interleaved matrix.
    stop: the one behind the last.

  Returns:
    Begin and end of every run of columns, in their order.
  """
  begins = np.cumsum((0, *widths[:-1]))
  found, place = [], 0
  for shard in range(num_shards):
    for begin, width in zip(begins, widths, strict=True):
      size = width // num_shards
      first, last = max(start, place), min(stop, place + size)
      if first < last:
        own = int(begin) + shard * size - place
        found.append((own + first, own + last))
      place += size
  return found


def columns(
  x: Array,
  weight: qarray.Weight,
  widths: tuple[int, ...],
  num_units: int | None = None,
) -> list[Array]:
  """The products of x and each matrix of [a | b | c], as one matmul.

  Traced for a mesh that shares out columns it is a matmul for each: so little
  of the weight moves between devices, and nothing of what they give.

  Args:
    x: [..., D].
    weight: [D, sum of widths], plain or cut (`nn.tiles`).
    widths: columns of each part.
    num_units: heads of a part, which stay whole; None: its columns.
  """
  found = spread.now()
  if found is None or found.heads is None:
    return split(tiles.matmul(x, weight), widths, 1)

  def product(begin, width):
    units = width if num_units is None else num_units
    part = jax.tree.map(
      lambda array: spread.columns(array, units),
      weight[..., begin : begin + width],
    )
    return tiles.matmul(x, part)

  begins = np.cumsum((0, *widths[:-1]))
  return [product(*of) for of in zip(begins, widths, strict=True)]


def split(x: Array, widths: tuple[int, ...], num_shards: int) -> list[Array]:
  """Takes apart what an interleaved matrix gave, [..., sum of widths]."""
  batch = x.shape[:-1]
  ends = np.cumsum(widths)[:-1] // num_shards
  parts = jnp.split(x.reshape(*batch, num_shards, -1), ends, axis=-1)
  return [part.reshape(*batch, -1) for part in parts]
