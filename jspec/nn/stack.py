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

A TPU's compiler fuses no slice into the kernel of `jax.lax.ragged_dot`: all
experts of a layer would be copied in every turn of the loop, and few of them
read. So they are `Whole`: stacked arrays that reach their layer uncut, with its
number (`Row`). Not where a step gathers each layer's weights from a mesh
(`spread`), which makes the copy anyway.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.kernels import choose
from jspec.nn import qarray, spread
from jspec.typing import Array, Int


class Whole(nnx.Param):
  """Stacked arrays that a loop for TPUs hands to its layers as a `Row`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Row:
  """A layer's part of a stacked array, not cut out of it.

  Attributes:
    stacked: of all layers; or what JAX puts in its place, a spec.
    index: number of the layer; likewise.
  """

  stacked: Any
  index: Any

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the part."""
    return self.stacked.shape[1:]


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
  reads_whole = choose.machine()[0] == 'tpu' and spread.now() is None

  def is_whole(node):
    # Weights of eight bits are widened first: of one layer, then.
    is_plain = isinstance(node, Whole) and not isinstance(
      node.get_value(), qarray.QArray
    )
    return reads_whole and is_plain

  def part(node):
    if is_whole(node):
      return node.replace(Row(node.get_value(), index))
    return jax.lax.dynamic_index_in_dim(node, index, keepdims=False)

  one = jax.tree.map(part, layers, is_leaf=is_whole)
  return function(spread.weights(one), *args)
