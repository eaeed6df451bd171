# SPDX-License-Identifier: MIT
"""Norm and gated MLP as functions of arrays; statistics in float32."""

import jax
import jax.numpy as jnp

from jspec.nn import tiles
from jspec.typing import Array, Float


def rms_norm(
  x: Float[Array, '*batch D'], scale: Float[Array, 'D'], eps: float
) -> Float[Array, '*batch D']:
  """x / sqrt(mean(x ** 2) + eps) * scale."""
  wide = x.astype(jnp.float32)
  variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  return (wide * jax.lax.rsqrt(variance + eps)).astype(x.dtype) * scale


def gated_mlp(
  x: Float[Array, '*batch D'],
  gate_up: Array,
  down: Array,
) -> Float[Array, '*batch Do']:
  """(silu(x W_gate) * x W_up) W_down; gate and up share one matmul.

  Args:
    x: the rows.
    gate_up: [D, 2 F], plain or cut (`nn.tiles`).
    down: [F, Do], plain or cut.
  """
  gate, up = jnp.split(tiles.matmul(x, gate_up), 2, axis=-1)
  return tiles.matmul(jax.nn.silu(gate) * up, down)
