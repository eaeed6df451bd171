# SPDX-License-Identifier: MIT
"""Weights cut into tiles of columns, for a few rows on a CPU.

  [D, F]  ->  [F / 64, D, 64]      x W  =  for every tile, x W_tile

XLA's CPU back end gives a matmul of 2 rows or more to a library that first
packs the whole weight, which at few rows costs more than the multiplication: 2
rows take 1.6 to 2 times as long as 1. Matmuls as small as a tile it compiles
itself, and those read each weight once, as it lies: 4 rows take little longer
than 1 (`jspec bench kernels`). From 8 rows on the library is as fast and later
faster, so whoever decodes with few rows keeps both forms.
"""

from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp

from jspec.nn import qarray
from jspec.typing import Array, Float, PyTree, Shaped

COLUMNS = 64
MAX_ROWS = 6


def cut(weight: Shaped[Array, 'D F']) -> Array:
  """Cuts a weight; one whose columns do not divide stays as it is."""
  rows, columns = weight.shape
  if columns % COLUMNS:
    return weight
  return weight.reshape(rows, -1, COLUMNS).swapaxes(0, 1)


def cut_all(
  module: PyTree,
  but: Collection[str] = (),
  cut_one: Callable[[Array], Array] = cut,
) -> PyTree:
  """The same module with every matrix cut; the rest is shared.

  Args:
    module: any, or a weight of eight bits.
    but: names of matrices that others than `matmul` multiply.
    cut_one: another way to the same as `cut`.
  """
  whole = {f'.{name}' for name in but} | {f"['{name}']" for name in but}

  def one(path, x):
    is_whole = x.ndim != 2 or any(str(key) in whole for key in path)
    return x if is_whole else cut_one(x)

  return jax.tree_util.tree_map_with_path(one, module)


def matmul(x: Float[Array, '*batch D'], weight: qarray.Weight) -> Array:
  """`x @ weight` for a weight that is cut, [F / 64, D, 64], or plain [D, F].

  One of eight bits is cut with its scale, [1, F] or [F / 64, 1, 64].
  """
  weight, scale = qarray.taken_apart(weight, x.dtype)
  return qarray.scaled(
    _matmul(x, weight), None if scale is None else scale.reshape(-1)
  )


def _matmul(x, weight):
  if weight.ndim == 2:
    return x @ weight
  flat = x.reshape(-1, x.shape[-1])
  num_tiles = weight.shape[0]
  out = jax.lax.dot_general(
    jnp.broadcast_to(flat, (num_tiles, *flat.shape)),
    weight,
    (((2,), (1,)), ((0,), (0,))),
  )
  out = out.swapaxes(0, 1).reshape(flat.shape[0], num_tiles * weight.shape[2])
  return out.reshape(*x.shape[:-1], -1)


def is_small(x: Float[Array, '*batch D']) -> bool:
  """Whether so few rows are better multiplied by tiles; one row is not."""
  return 1 < x.size // x.shape[-1] <= MAX_ROWS
