# SPDX-License-Identifier: MIT
"""Layers of equal shape, applied by number inside a loop.

A loop over layers compiles one layer whatever the depth. How the loop gets at
the weights depends on where it runs:

  stacked  one array [L, ...] a weight; the loop slices layer l out. Right for
           accelerators, whose compilers fuse the slice into the matmul.
  split    L arrays a weight; the loop branches on l. XLA's CPU back end copies
           a slice before it multiplies (40 % of a round at one row), and a
           branch hands its arrays over as they are.
  mixed    groups of layers of equal shape, each stacked, for a model whose
           layers are of several kinds (gated MLPs and experts); the loop
           branches on the kind, so one layer of each is compiled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.nn import spread
from jspec.typing import Array, Int


class Mixed(nnx.Module):
  """Stacked groups, and where in them each layer is."""

  def __init__(self, groups: list[nnx.Module], kinds: tuple[int, ...]):
    """Holds groups; `kinds` names the group of each layer, in their order."""
    self.groups = nnx.List(groups)
    self.kinds = kinds
    self.rows = tuple(kinds[:i].count(kind) for i, kind in enumerate(kinds))


def parts(layers: nnx.Module) -> list[nnx.Module]:
  """The modules that hold the arrays."""
  if isinstance(layers, Mixed):
    return list(layers.groups)
  return list(layers) if isinstance(layers, nnx.List) else [layers]


def split(stacked: nnx.Module, num_layers: int) -> nnx.Module:
  """The layers of a stacked module, each with arrays of its own."""
  return nnx.List(layer(stacked, i) for i in range(num_layers))


def layer(layers: nnx.Module, index: int) -> nnx.Module:
  """The layer of that number, known now."""
  if isinstance(layers, nnx.List):
    return layers[index]
  if isinstance(layers, Mixed):
    return layer(layers.groups[layers.kinds[index]], layers.rows[index])
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
  if isinstance(layers, Mixed):
    branches = [
      lambda row, *operands, group=group: apply(group, row, function, *operands)
      for group in layers.groups
    ]
    kind, row = (
      jnp.asarray(layers.kinds)[index],
      jnp.asarray(layers.rows)[index],
    )
    return jax.lax.switch(kind, branches, row, *args)
  one = jax.tree.map(
    lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False),
    layers,
  )
  return function(spread.weights(one), *args)
