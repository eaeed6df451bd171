# SPDX-License-Identifier: MIT
"""Many small arrays of the host as two, so that they travel together.

To put an array on the device costs the host about as much for one number as for
a thousand. A `Layout` says where each of a tree of arrays lies in one vector of
int32 and one of float32, in the order of the tree's leaves:

  tree    {'row': int32 [], 'tokens': int32 [4], 'heat': float32 [1]}
  leaves  heat row tokens
  whole   row | t t t t      int32, uint32 (the same bits), bool (0 or 1)
  real    heat               float32

`pack` is for the host and `unpack` for the program; the offsets of both are
those of `Layout.places`.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jspec.typing import Array, Float, Int, PyTree

_WHOLE = ('int32', 'uint32', 'bool')
_REAL = ('float32',)


@dataclasses.dataclass(frozen=True)
class Layout:
  """Where the leaves of a tree lie; made by `layout`.

  Attributes:
    structure: of the tree.
    leaves: shape and name of the dtype of each leaf.
  """

  structure: Any
  leaves: tuple[tuple[tuple[int, ...], str], ...]

  def places(self) -> list[tuple[bool, int, int]]:
    """Of each leaf: whether it is real, and its first and end in the vector."""
    ends = {True: 0, False: 0}
    found = []
    for shape, dtype in self.leaves:
      is_real = dtype in _REAL
      first = ends[is_real]
      ends[is_real] += math.prod(shape)
      found.append((is_real, first, ends[is_real]))
    return found

  def sizes(self) -> tuple[int, int]:
    """Lengths of the vectors, `whole` and `real`."""
    places = self.places()
    return tuple(
      max((end for is_real, _, end in places if is_real == kind), default=0)
      for kind in (False, True)
    )

  def pack(self, tree: PyTree) -> tuple[np.ndarray, np.ndarray]:
    """`whole` and `real`, from a tree of numpy arrays.

    Raises:
      ValueError: the tree is not of this layout; a defect of the caller.
    """
    leaves, structure = jax.tree.flatten(tree)
    found = tuple((leaf.shape, leaf.dtype.name) for leaf in leaves)
    if (structure, found) != (self.structure, self.leaves):
      raise ValueError(f'{structure} of {found} is not of the layout {self}')
    whole, real = (
      np.empty((size,), dtype)
      for size, dtype in zip(self.sizes(), (np.int32, np.float32), strict=True)
    )
    for leaf, (is_real, first, end) in zip(leaves, self.places(), strict=True):
      bits = leaf.view(np.int32) if leaf.dtype == np.uint32 else leaf
      (real if is_real else whole)[first:end] = bits.reshape(-1)
    return whole, real

  def unpack(self, whole: Int[Array, 'I'], real: Float[Array, 'F']) -> PyTree:
    """The tree again, inside a program."""
    leaves = []
    for (shape, dtype), (is_real, first, end) in zip(
      self.leaves, self.places(), strict=True
    ):
      leaf = (real if is_real else whole)[first:end].reshape(shape)
      if dtype == 'uint32':
        leaf = lax.bitcast_convert_type(leaf, jnp.uint32)
      elif dtype == 'bool':
        leaf = leaf != 0
      leaves.append(leaf)
    return jax.tree.unflatten(self.structure, leaves)


def layout(example: PyTree) -> Layout:
  """The layout of trees like one of arrays, or of their shapes.

  Raises:
    ValueError: a leaf of another dtype than those above.
  """
  leaves, structure = jax.tree.flatten(example)
  found = tuple(
    (tuple(leaf.shape), jnp.dtype(leaf.dtype).name) for leaf in leaves
  )
  for _, dtype in found:
    if dtype not in _WHOLE + _REAL:
      raise ValueError(f'{dtype} cannot be packed: give {_WHOLE + _REAL}')
  return Layout(structure, found)
