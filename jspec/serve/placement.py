# SPDX-License-Identifier: MIT
"""Where everything an engine holds lies on a mesh of devices.

  target          shared out (`targets.sharding`)
  pages           of the target: by key-value heads, as its attention
  seen tokens     by the vocabulary, as the logits they change
  drafter         whole on every device, its pages too: every device drafts the
                  same
  rows, inputs    whole on every device
  reports         whole on every device, so the host reads any of them

A program is compiled for inputs that lie so and for a state that comes out as
it went in. The devices may belong to several processes (`calls`): each has the
same models and keeps its share, so nothing of them is exchanged.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.decode import round as round_lib
from jspec.targets import sharding
from jspec.typing import PyTree


def checked(mesh: Mesh) -> Mesh:
  """The mesh an engine runs on.

  Raises:
    UserError: it has other axes than `targets.sharding.AXIS`, or no device of
      some process: that one could not call its programs.
  """
  if len(mesh.axis_names) != 1:
    raise errors.UserError(
      f'the mesh has axes {mesh.axis_names}: an engine takes one axis'
      f' {sharding.AXIS!r}; run an engine for each group of devices'
    )
  has = {device.process_index for device in mesh.devices.flat}
  if has != set(range(jax.process_count())):
    raise errors.UserError(
      f'the mesh has devices of the processes {sorted(has)} of'
      f' {jax.process_count()}: take some of every process'
    )
  return sharding.checked(mesh)


def is_shared(mesh: Mesh | None) -> bool:
  """Whether the devices belong to several processes."""
  return mesh is not None and not whole(mesh).is_fully_addressable


def whole(mesh: Mesh) -> NamedSharding:
  """All of an array on every device."""
  return NamedSharding(mesh, PartitionSpec())


def models(target, drafter, mesh: Mesh) -> tuple[Any, Any]:
  """Target and drafter on the mesh; those that were given stay as they are.

  Raises:
    UserError: the target cannot be shared out (`targets.sharding.place`).
  """
  # A drafter that borrows from the target holds those arrays whole.
  lies = whole(mesh)
  placed = jax.tree.map(lambda array: sharding.put(array, lies), drafter)
  return sharding.place(target, mesh), placed


def state(
  make: Callable[..., round_lib.State], mesh: Mesh, **sizes: int
) -> round_lib.State:
  """What `make(**sizes)` makes, where it lies: no device ever holds all."""

  def spread():
    made = make(**sizes)
    pages = made.cache.pages
    heads = sharding.attention_axis(pages.k.shape[2], mesh)
    lies = NamedSharding(mesh, PartitionSpec(None, None, heads))
    pages = dataclasses.replace(pages, sharding=lies)
    cache = dataclasses.replace(made.cache, pages=pages)
    return dataclasses.replace(made, cache=cache)

  return jax.jit(spread, out_shardings=shardings(jax.eval_shape(spread)))()


def shardings(state: round_lib.State) -> PyTree:
  """How each array of a state with spread pages lies, as a tree of its form."""
  pool = state.cache.pages.sharding
  everywhere = whole(pool.mesh)
  by_token = NamedSharding(pool.mesh, PartitionSpec(None, sharding.AXIS))
  lies = jax.tree.map(lambda _: everywhere, state)
  history = lies.asks.history
  history = dataclasses.replace(
    history, prompt_seen=by_token, output_counts=by_token
  )
  # Pools of keys and values, and of their scales.
  pages = jax.tree.map(lambda _: pool, lies.cache.pages)
  return dataclasses.replace(
    lies,
    cache=dataclasses.replace(lies.cache, pages=pages),
    asks=dataclasses.replace(lies.asks, history=history),
  )


def described(arguments: PyTree, mesh: Mesh) -> PyTree:
  """What a program is compiled for; the host's arrays become shapes."""

  def describe(leaf):
    if isinstance(leaf, jax.Array) and leaf.sharding.device_set == devices:
      return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole(mesh))

  devices = set(mesh.devices.flat)
  return jax.tree.map(describe, arguments)
