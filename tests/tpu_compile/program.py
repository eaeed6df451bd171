# SPDX-License-Identifier: MIT
"""A program to compile, as data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


def shape(*sizes, dtype=jnp.bfloat16):
  return jax.ShapeDtypeStruct(sizes, dtype)


def integers(*sizes):
  return shape(*sizes, dtype=jnp.int32)


def replicated(mesh):
  """Shardings of arguments and results that every device holds whole."""
  everywhere = NamedSharding(mesh, PartitionSpec())
  return everywhere, everywhere


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
  """A function, the shapes it is called with, and what to expect.

  Attributes:
    name: key in the report and the baseline.
    function: called with the mesh first if `num_devices` is more than one.
    arguments: pytrees of shapes.
    shardings: from the mesh to (in_shardings, out_shardings); both may be
      prefixes of the pytrees, and may be layout formats.
    donate: positions of arguments that are donated.
    num_devices: devices of the mesh, whose one axis is 'model'.
    max_temp_bytes: what a mistake would need: the bytes of a pool of pages that
      must not be copied, or of logits that must not exist.
    floor_bytes: bytes that have to be moved; the program, with what XLA adds to
      a kernel, may move 1.3 times as many.
    topologies: of `environment.TOPOLOGIES`; None for all of them.
    fails_with: part of the fault that must be found (a negative control).
  """

  name: str
  function: Callable[..., Any]
  arguments: tuple[Any, ...]
  shardings: Callable[[Mesh], tuple[Any, Any]] = replicated
  donate: tuple[int, ...] = ()
  num_devices: int = 1
  max_temp_bytes: int | None = None
  floor_bytes: int | None = None
  topologies: tuple[str, ...] | None = None
  fails_with: str | None = None


def compile_for(program: Program, devices):
  """The compiled program for the first devices of a topology."""
  mesh = Mesh(
    np.array(devices[: program.num_devices]),
    ('model',),
    axis_types=(AxisType.Auto,),
  )
  function = program.function
  if program.num_devices > 1:
    whole = function

    def function(*arguments):
      return whole(mesh, *arguments)

  in_shardings, out_shardings = program.shardings(mesh)
  jitted = jax.jit(
    function,
    in_shardings=in_shardings,
    out_shardings=out_shardings,
    donate_argnums=program.donate,
  )
  return jitted.lower(*program.arguments).compile()
