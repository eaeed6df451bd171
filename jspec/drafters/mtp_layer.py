# SPDX-License-Identifier: MIT
"""The decoder layer of a multi-token-prediction drafter.

  x += out(attention(rope(norm(x) W_q), rope(norm(x) W_k), norm(x) W_v))
  x += mlp(norm(x))            a gated MLP, or a mixture of experts (`nn.moe`)

It is a layer of the target's own kind (DeepSeek-V3, arXiv 2412.19437, section
2.2), with a norm on queries and keys where the target has one. Names and
shapes of a dense one are those of `targets.transformer.Layer`, so that a
layer of the target can be copied in. What attends to what is the caller's.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.nn import fused, layers, moe, rope
from jspec.typing import Array, Float, Int, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
  """Shapes and constants of the layer.

  Attributes:
    experts: the mixture, or None for a gated MLP `ff_width` wide.
  """

  width: int
  ff_width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float
  qk_norm: bool
  experts: moe.MoeConfig | None


def array_shapes(config: LayerConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the layer's arrays."""
  c = config
  num_columns = (c.num_heads + 2 * c.num_kv_heads) * c.head_width
  shapes = {
    'attn_norm': (c.width,),
    'qkv': (c.width, num_columns),
    'out': (c.num_heads * c.head_width, c.width),
    'mlp_norm': (c.width,),
  }
  if c.qk_norm:
    shapes |= {'q_norm': (c.head_width,), 'k_norm': (c.head_width,)}
  if c.experts is not None:
    return shapes | moe.array_shapes(c.experts)
  return shapes | {
    'gate_up': (c.width, 2 * c.ff_width),
    'down': (c.ff_width, c.width),
  }


def random_arrays(config: LayerConfig, key: Key[Array, '']) -> dict[str, Array]:
  """Initial weights: normal 0.02, norms 1, the experts' bias 0."""
  arrays = {}
  for name, shape in array_shapes(config).items():
    key, subkey = jax.random.split(key)
    if name.endswith('norm'):
      arrays[name] = jnp.ones(shape)
    elif name == 'expert_bias':
      arrays[name] = jnp.zeros(shape)
    else:
      arrays[name] = 0.02 * jax.random.normal(subkey, shape)
  return arrays


class Layer(nnx.Module):
  """One layer; attention happens between its two halves."""

  def __init__(self, config: LayerConfig, arrays: dict[str, Array]):
    """Holds `arrays`, named and shaped as `array_shapes` says."""
    self.config = config
    self.attn_norm = nnx.Param(arrays['attn_norm'])
    self.qkv = nnx.Param(arrays['qkv'])
    self.out = nnx.Param(arrays['out'])
    self.mlp_norm = nnx.Param(arrays['mlp_norm'])
    self.q_norm, self.k_norm, self.gate_up, self.down = (
      nnx.Param(arrays[name]) if name in arrays else None
      for name in ('q_norm', 'k_norm', 'gate_up', 'down')
    )
    self.moe = (
      None
      if config.experts is None
      else moe.Moe(
        config.experts,
        {name: arrays[name] for name in moe.array_shapes(config.experts)},
      )
    )

  def leaves(self) -> dict[str, nnx.Param]:
    """The parameters, named as in `array_shapes`."""
    found = {}
    for name in array_shapes(self.config):
      owner = self if name in vars(self) else self.moe
      found[name] = getattr(owner, name)
    return found

  def before_attention(
    self, x: Float[Array, 'B T D'], positions: Int[Array, 'B T']
  ) -> tuple[
    Float[Array, 'B T N H'], Float[Array, 'B T K H'], Float[Array, 'B T K H']
  ]:
    """Queries and keys, normed and rotated, and values."""
    c = self.config
    normed = layers.rms_norm(x, self.attn_norm[...], c.norm_eps)
    counts = (c.num_heads, c.num_kv_heads, c.num_kv_heads)
    widths = tuple(count * c.head_width for count in counts)
    queries, keys, values = (
      part.reshape(*x.shape[:2], -1, c.head_width)
      for part in fused.columns(normed, self.qkv[...], widths, c.num_kv_heads)
    )
    if self.q_norm is not None:
      queries = layers.rms_norm(queries, self.q_norm[...], c.norm_eps)
      keys = layers.rms_norm(keys, self.k_norm[...], c.norm_eps)
    turns = rope.cos_sin(
      positions, rope.RopeConfig(base=c.rope_base), c.head_width
    )
    return rope.apply(queries, *turns), rope.apply(keys, *turns), values

  def after_attention(
    self, x: Float[Array, 'B T D'], mixed: Float[Array, 'B T N H']
  ) -> Float[Array, 'B T D']:
    """The new residual stream, from the heads' mixed values."""
    x = x + mixed.reshape(*x.shape[:2], -1) @ self.out[...]
    normed = layers.rms_norm(x, self.mlp_norm[...], self.config.norm_eps)
    if self.moe is not None:
      return x + self.moe(normed)
    return x + layers.gated_mlp(normed, self.gate_up[...], self.down[...])
