# SPDX-License-Identifier: MIT
"""Cuts the matrices of a target into tiles (`nn.tiles`) where it was read.

On a CPU the host holds the arrays: threads copy them there, into memory that
JAX takes as it is. `jnp` would compile a program for every shape, and use new
memory page by page.
"""

import concurrent.futures

import jax
import numpy as np

from jspec.checkpoints import host_memory
from jspec.nn import tiles
from jspec.targets import transformer
from jspec.typing import Array


def add(target: transformer.Transformer) -> None:
  """The same as `target.add_tiles()`, of a target on a CPU."""
  found: list[Array] = []

  def collect(weight):
    found.append(weight)
    return weight

  target.add_tiles(collect)
  arena = host_memory.Arena(sum(weight.nbytes for weight in found))

  def cut_one(weight):
    rows, columns = weight.shape
    if columns % tiles.COLUMNS:
      return weight
    whole = np.asarray(weight).reshape(rows, -1, tiles.COLUMNS)
    cut = whole.swapaxes(0, 1)
    host = arena.empty(cut.shape, weight.dtype)
    host_memory.copy(cut, host)
    return jax.device_put(host)

  with concurrent.futures.ThreadPoolExecutor(host_memory.threads()) as pool:
    made = pool.map(cut_one, found)
    # It asks for them in the same order.
    target.add_tiles(lambda _: next(made))
