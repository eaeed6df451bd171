# SPDX-License-Identifier: MIT
"""SpecBlock's layers: parallel slots that hear their left neighbour in between.

Slot k drafts without seeing what slot k - 1 drafted. The layer-wise shift makes
up for it: from the second layer on, a slot starts from what it and the slot
before it made of the layer below (SpecBlock, arXiv 2605.07243),

  x_k = [x_k; x_{k-1}] W_shift,    with x_{-1} = x_0
  x += out(attention(rope(norm(x) W_q), rope(norm(x) W_k), norm(x) W_v))
  x += mlp(norm(x))

Attention is causal over slots, so what a slot says goes to later slots only.
W_shift starts as the identity over nothing: fresh layers are a plain stack.
Who attends to what is the caller's, see `specblock_attention`.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.drafters import specblock_config
from jspec.nn import fused, remat, rope
from jspec.nn import layers as layers_lib
from jspec.typing import Array, Float, Int, Key

# Mixed values of the queries; given the layer's number and its q, k and v, each
# [B, R, slots, heads, H].
Attend = Callable[[int, Array, Array, Array], Array]
Rows = list[tuple[Array, Array]]  # Key and value rows of every layer.


def random_arrays(
  config: specblock_config.Config, key: Key[Array, '']
) -> dict[str, Array]:
  """Weights of a fresh layer: normal 0.02, residual outputs smaller."""
  c = config
  shapes = {
    'q': (c.width, c.num_heads * c.head_width),
    'kv': (c.width, 2 * c.num_kv_heads * c.head_width),
    'out': (c.num_heads * c.head_width, c.width),
    'gate_up': (c.width, 2 * c.ff_width),
    'down': (c.ff_width, c.width),
  }
  keys = jax.random.split(key, len(shapes))
  arrays = {'attn_norm': jnp.ones(c.width), 'mlp_norm': jnp.ones(c.width)}
  for subkey, (name, shape) in zip(keys, shapes.items(), strict=True):
    is_residual = name in ('out', 'down')
    scale = 0.02 / math.sqrt(2 * c.num_layers) if is_residual else 0.02
    arrays[name] = scale * jax.random.normal(subkey, shape, jnp.float32)
  return arrays


class Layer(nnx.Module):
  """One layer; the first has no shift before it."""

  def __init__(
    self,
    config: specblock_config.Config,
    key: Key[Array, ''],
    *,
    is_first: bool,
  ):
    self.shift = nnx.data(None)
    if not is_first:
      own = jnp.eye(config.width)
      self.shift = nnx.Param(jnp.concatenate([own, jnp.zeros_like(own)]))
    for name, array in random_arrays(config, key).items():
      setattr(self, name, nnx.Param(array))

  def shifted(
    self, x: Float[Array, 'B R slots D']
  ) -> Float[Array, 'B R slots D']:
    """Every slot with its left neighbour; slot 0 with itself."""
    if self.shift is None:
      return x
    left = jnp.concatenate([x[:, :, :1], x[:, :, :-1]], axis=2)
    return jnp.concatenate([x, left], axis=-1) @ self.shift[...]

  def __call__(self, x, config, cos, sin, attend):
    """The new stream [B, R, slots, D], and the slots' key and value rows."""
    shape = (*x.shape[:3], -1, config.head_width)
    flat = (x.shape[0], x.shape[1] * x.shape[2], -1, config.head_width)
    x = self.shifted(x)
    normed = layers_lib.rms_norm(x, self.attn_norm[...], config.norm_eps)
    q = rope.apply((normed @ self.q[...]).reshape(flat), cos, sin)
    widths = (config.num_kv_heads * config.head_width,) * 2
    k, v = (
      part.reshape(flat)
      for part in fused.columns(
        normed, self.kv[...], widths, config.num_kv_heads
      )
    )
    k = rope.apply(k, cos, sin)
    q, k, v = (heads.reshape(shape) for heads in (q, k, v))
    mixed = attend(q, k, v).reshape(*x.shape[:3], -1)
    x = x + mixed @ self.out[...]
    normed = layers_lib.rms_norm(x, self.mlp_norm[...], config.norm_eps)
    x = x + layers_lib.gated_mlp(normed, self.gate_up[...], self.down[...])
    return x, (k, v)


def run(
  layers: nnx.Module,
  config: specblock_config.Config,
  x: Float[Array, 'B R slots D'],
  positions: Int[Array, 'B R'],
  attend: Attend,
) -> tuple[Float[Array, 'B R slots D'], Rows]:
  """Runs all layers, one after the other.

  Args:
    layers: the list of them.
    config: shapes.
    x: fused inputs.
    positions: of the token whose features a row has, in its document; slot k
      stands at the next but k, in every block.
    attend: the attention.

  Returns:
    The states before the final norm, and every layer's key and value rows
    [B, R, slots, K, H].
  """
  at = positions[..., None] + 1 + jnp.arange(x.shape[2])
  at = at.reshape(x.shape[0], -1)
  cos, sin = rope.cos_sin(at, config.rope, config.head_width)
  rows = []
  for i, layer in enumerate(layers):

    def of_layer(q, k, v, i=i):
      return attend(i, q, k, v)

    def one(x, layer=layer, attend=of_layer):
      return layer(x, config, cos, sin, attend)

    x, made = remat.layer(one)(x)
    rows.append(made)
  return x, rows
