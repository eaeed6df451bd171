# SPDX-License-Identifier: MIT
"""Layers of equal shape, applied by number inside a loop.

A loop over layers compiles one layer whatever the depth. How the loop gets at
the weights depends on where it runs:

  stacked  one array [L, ...] a weight; the loop slices layer l out. Right for
           accelerators, whose compilers fuse the slice into the matmul.
  split    L arrays a weight; the loop branches on l. XLA's CPU back end copies
           a slice before it multiplies (40 % of a round at one row), and a
           branch hands its arrays over as they are.
"""

from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jspec.typing import Array, Int


def split(stacked: nnx.Module, num_layers: int) -> nnx.Module:
  """The layers of a stacked module, each with arrays of its own."""
  return nnx.List(layer(stacked, i) for i in range(num_layers))


def layer(layers: nnx.Module, index: int) -> nnx.Module:
  """The layer of that number, known now."""
  if isinstance(layers, nnx.List):
    return layers[index]
  return jax.tree.map(lambda leaf: leaf[index], layers)


def apply(
  layers: nnx.Module,
  index: Int[Array, ''],
  function: Callable[..., Any],
  *args: Any,
) -> Any:
  """`function(layers[index], *args)`, for an index known at run time only."""
  if isinstance(layers, nnx.List):
    branches = [
      lambda *operands, layer=layer: function(layer, *operands)
      for layer in layers
    ]
    return jax.lax.switch(index, branches, *args)
  one = jax.tree.map(
    lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False),
    layers,
  )
  return function(one, *args)
