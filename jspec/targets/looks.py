# SPDX-License-Identifier: MIT
"""What differs from layer to layer: the window, and how heads are rotated.

A *look* is one such pair. A model has one (Llama) or two (Gemma 3: five layers
that see 1024 tokens and turn fast, then one that sees all and turns slowly).
Layers are scanned, so the look of a layer is an index known at run time only:

  look 0 0 0 0 0 1 0 0 ...      rides along the scan
  cos, sin [looks, B, T, 1, H/2]      are indexed by it
  attention                     branches on it: a window is known when compiled

With one look none of this exists in the program.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jspec.nn import rope
from jspec.targets import architecture
from jspec.typing import Array, Int


@dataclasses.dataclass(frozen=True)
class Look:
  """The tokens that are seen, itself included (None: all), and the rotation."""

  window: int | None
  rope: rope.RopeConfig


@dataclasses.dataclass(frozen=True)
class Looks:
  """The looks of a stack.

  Attributes:
    distinct: each once.
    of_layer: an index into them for each layer.
    rotary_width: columns of a head that are rotated.
  """

  distinct: tuple[Look, ...]
  of_layer: tuple[int, ...]
  rotary_width: int

  def indices(self) -> Int[Array, 'L'] | None:
    """What rides along the scan; None where all layers look alike."""
    if len(self.distinct) == 1:
      return None
    return jnp.asarray(self.of_layer, jnp.int32)

  def rotations(self, positions: Int[Array, 'B T']) -> tuple[Array, Array]:
    """Cosines and sines of each look."""
    turned = [
      rope.cos_sin(positions, look.rope, self.rotary_width)
      for look in self.distinct
    ]
    if len(turned) == 1:
      return turned[0]
    cosines, sines = zip(*turned, strict=True)
    return jnp.stack(cosines), jnp.stack(sines)

  def rotation(
    self, rotations: tuple[Array, Array], index: Int[Array, ''] | None
  ) -> tuple[Array, Array]:
    """Those of one layer."""
    if index is None:
      return rotations
    cosines, sines = rotations
    return cosines[index], sines[index]

  def attend(
    self,
    function: Callable[..., Array],
    index: Int[Array, ''] | None,
    *args: Array | None,
  ) -> Array:
    """`function(window, *args)` with the window of one layer."""
    if index is None:
      return function(self.distinct[0].window, *args)
    branches = [
      lambda *operands, window=look.window: function(window, *operands)
      for look in self.distinct
    ]
    return jax.lax.switch(index, branches, *args)


def of(config: architecture.TransformerConfig) -> Looks:
  """The looks of a stack with that config."""
  width = config.head_width
  if config.latent is not None:
    width = config.latent.rotary_width
  local = config.local_rope or config.rope
  looks = [
    Look(window, config.rope if window is None else local)
    for window in architecture.windows(config)
  ]
  distinct = tuple(dict.fromkeys(looks))
  return Looks(distinct, tuple(map(distinct.index, looks)), width)
