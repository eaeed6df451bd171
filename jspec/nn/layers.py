# SPDX-License-Identifier: MIT
"""Norm and gated MLP as functions of arrays; statistics in float32."""

import jax
import jax.numpy as jnp

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
  gate_up: Float[Array, 'D F2'],
  down: Float[Array, 'F D'],
) -> Float[Array, '*batch D']:
  """(silu(x W_gate) * x W_up) W_down; gate and up share one matmul."""
  gate, up = jnp.split(x @ gate_up, 2, axis=-1)
  return (jax.nn.silu(gate) * up) @ down
