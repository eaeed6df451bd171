# SPDX-License-Identifier: MIT
"""Norm and gated MLP as functions of arrays; statistics in float32."""

import jax
import jax.numpy as jnp

from jspec.nn import fused, qarray, tiles
from jspec.typing import Array, Float


def clamped_swiglu(gate: Array, up: Array) -> Array:
  """min(g, 7) sigmoid(1.702 g) (clip(u, -7, 7) + 1), as GPT-OSS has it."""
  gate, up = jnp.minimum(gate, 7.0), jnp.clip(up, -7.0, 7.0)
  return gate * jax.nn.sigmoid(1.702 * gate) * (up + 1)


# From the columns of gate and up to the rows that `down` gets.
GATES = {
  'gelu_tanh': lambda gate, up: jax.nn.gelu(gate, approximate=True) * up,
  'silu': lambda gate, up: jax.nn.silu(gate) * up,
  'clamped_swiglu': clamped_swiglu,
}


def rms_norm(
  x: Float[Array, '*batch D'], scale: Float[Array, 'D'], eps: float
) -> Float[Array, '*batch D']:
  """x / sqrt(mean(x ** 2) + eps) * scale."""
  wide = x.astype(jnp.float32)
  variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  return (wide * jax.lax.rsqrt(variance + eps)).astype(x.dtype) * scale


def gated_mlp(
  x: Float[Array, '*batch D'],
  gate_up: qarray.Weight,
  down: qarray.Weight,
  num_shards: int = 1,
  activation: str = 'silu',
) -> Float[Array, '*batch Do']:
  """(act(x W_gate) * x W_up) W_down; gate and up share one matmul.

  Args:
    x: the rows.
    gate_up: [D, 2 F], plain or cut (`nn.tiles`).
    down: [F, Do], plain or cut.
    num_shards: how the columns of `gate_up` lie (`nn.fused`).
    activation: act, a key of `GATES`.
  """
  widths = (gate_up.size // x.shape[-1] // 2,) * 2
  if num_shards == 1:
    gate, up = fused.columns(x, gate_up, widths)
  else:
    gate, up = fused.split(tiles.matmul(x, gate_up), widths, num_shards)
  return tiles.matmul(GATES[activation](gate, up), down)
