# SPDX-License-Identifier: MIT
"""EAGLE-3's decoder layer: token and feature side by side.

  x = [input_norm(embedding of the next token), hidden_norm(h)]      2 D wide
  h += out(attention(rope(x W_q), rope(x W_k), x W_v))
  h += mlp(mlp_norm(h))

h is the fused feature of a token or, where the target has not been yet, what
the layer gave out one token before; the residual is on h alone (arXiv
2503.01840, section 3.1). What attends to what is the caller's. `q` is kept
apart from `kv`: a committed row needs keys and values, and only the last one
a query.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.nn import fused, layers, rope, tiles
from jspec.typing import Array, Float, Int, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
  """Shapes and constants of the layer; letters as in jspec.typing."""

  width: int
  ff_width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float

  @property
  def rope(self) -> rope.RopeConfig:
    """Plain rotary embedding."""
    return rope.RopeConfig(base=self.rope_base)


def array_shapes(config: LayerConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the layer's arrays."""
  c = config
  return {
    'input_norm': (c.width,),
    'hidden_norm': (c.width,),
    'q': (2 * c.width, c.num_heads * c.head_width),
    'kv': (2 * c.width, 2 * c.num_kv_heads * c.head_width),
    'out': (c.num_heads * c.head_width, c.width),
    'mlp_norm': (c.width,),
    'gate_up': (c.width, 2 * c.ff_width),
    'down': (c.ff_width, c.width),
  }


def random_arrays(config: LayerConfig, key: Key[Array, '']) -> dict[str, Array]:
  """Initial weights: normal 0.02, residual outputs smaller."""
  arrays = {}
  for name, shape in array_shapes(config).items():
    key, subkey = jax.random.split(key)
    if name.endswith('norm'):
      arrays[name] = jnp.ones(shape, jnp.float32)
      continue
    scale = 0.02 / math.sqrt(2) if name in ('out', 'down') else 0.02
    arrays[name] = scale * jax.random.normal(subkey, shape, jnp.float32)
  return arrays


class Layer(nnx.Module):
  """The parameters, and the layer in three parts around the attention."""

  def __init__(self, config: LayerConfig, arrays: dict[str, Array]):
    self.config = config
    self.input_norm = nnx.Param(arrays['input_norm'])
    self.hidden_norm = nnx.Param(arrays['hidden_norm'])
    self.q = nnx.Param(arrays['q'])
    self.kv = nnx.Param(arrays['kv'])
    self.out = nnx.Param(arrays['out'])
    self.mlp_norm = nnx.Param(arrays['mlp_norm'])
    self.gate_up = nnx.Param(arrays['gate_up'])
    self.down = nnx.Param(arrays['down'])

  def turns(self, positions: Int[Array, 'B T']) -> tuple[Array, Array]:
    """Cosines and sines of so many positions."""
    config = self.config
    return rope.cos_sin(positions, config.rope, config.head_width)

  def inputs(
    self, embedded: Float[Array, 'B T D'], hidden: Float[Array, 'B T D']
  ) -> Float[Array, 'B T D2']:
    """What queries, keys and values are made of."""
    eps = self.config.norm_eps
    return jnp.concatenate(
      [
        layers.rms_norm(embedded, self.input_norm[...], eps),
        layers.rms_norm(hidden, self.hidden_norm[...], eps),
      ],
      axis=-1,
    )

  def rows(
    self, x: Float[Array, 'B T D2'], cos: Array, sin: Array
  ) -> tuple[Float[Array, 'B T K H'], Float[Array, 'B T K H']]:
    """Keys, rotated, and values."""
    c = self.config
    widths = (c.num_kv_heads * c.head_width,) * 2
    keys, values = (
      part.reshape(*x.shape[:2], -1, c.head_width)
      for part in fused.columns(x, self.kv[...], widths, c.num_kv_heads)
    )
    return rope.apply(keys, cos, sin), values

  def queries(
    self, x: Float[Array, 'B T D2'], cos: Array, sin: Array
  ) -> Float[Array, 'B T N H']:
    """Queries, rotated."""
    heads = tiles.matmul(x, self.q[...])
    heads = heads.reshape(*x.shape[:2], -1, self.config.head_width)
    return rope.apply(heads, cos, sin)

  def finish(
    self, hidden: Float[Array, 'B T D'], mixed: Float[Array, 'B T N H']
  ) -> Float[Array, 'B T D']:
    """Adds the attention's output and the MLP's to the stream."""
    flat = mixed.reshape(*mixed.shape[:2], -1)
    hidden = hidden + tiles.matmul(flat, self.out[...])
    normed = layers.rms_norm(hidden, self.mlp_norm[...], self.config.norm_eps)
    return hidden + layers.gated_mlp(normed, self.gate_up[...], self.down[...])
