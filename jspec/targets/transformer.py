# SPDX-License-Identifier: MIT
"""The decoder stack every Llama-like family runs on.

  x += out(attention(norm(x)));  x += down(silu(gate(norm(x))) * up(norm(x)))

Layers are stacked on a leading axis and scanned, so compile time does not grow
with depth. Query, key and value share one matmul, gate and up another; weights
are stored [in, out]. Reads the cache, never writes it.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.cache import paged
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.nn import layers, rope, stack, tiles
from jspec.targets import base
from jspec.typing import Array, Float, Int, Key, UInt32


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
  """Shapes and constants of a decoder stack; letters as in jspec.typing."""

  num_layers: int
  width: int
  ff_width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  vocab_size: int
  max_len: int
  norm_eps: float
  rope: rope.RopeConfig
  tied: bool


def array_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of all arrays a `Transformer` is made of."""
  c = config
  qkv_width = (c.num_heads + 2 * c.num_kv_heads) * c.head_width
  return {
    'embedding': (c.vocab_size, c.width),
    'head': (c.width, c.vocab_size),
    'final_norm': (c.width,),
    'attn_norm': (c.num_layers, c.width),
    'qkv': (c.num_layers, c.width, qkv_width),
    'out': (c.num_layers, c.num_heads * c.head_width, c.width),
    'mlp_norm': (c.num_layers, c.width),
    'gate_up': (c.num_layers, c.width, 2 * c.ff_width),
    'down': (c.num_layers, c.ff_width, c.width),
  }


LAYER_ARRAYS = ('attn_norm', 'qkv', 'out', 'mlp_norm', 'gate_up', 'down')


class Layer(nnx.Module):
  """The weights of one decoder layer, or of all stacked on a leading axis."""

  def __init__(self, arrays: dict[str, Array]):
    self.attn_norm = nnx.Param(arrays['attn_norm'])
    self.qkv = nnx.Param(arrays['qkv'])
    self.out = nnx.Param(arrays['out'])
    self.mlp_norm = nnx.Param(arrays['mlp_norm'])
    self.gate_up = nnx.Param(arrays['gate_up'])
    self.down = nnx.Param(arrays['down'])

  def before_attention(self, x, eps):
    """Query, key and value columns of the residual stream [B, T, D]."""
    normed = layers.rms_norm(x, self.attn_norm[...], eps)
    return tiles.matmul(normed, self.qkv[...])

  def after_attention(self, x, mixed, eps):
    """The new residual stream, from the heads' mixed values."""
    x = x + tiles.matmul(mixed, self.out[...])
    normed = layers.rms_norm(x, self.mlp_norm[...], eps)
    return x + layers.gated_mlp(normed, self.gate_up[...], self.down[...])


class Transformer(nnx.Module):
  """A frozen Llama-like decoder; implements `targets.base.Target`."""

  def __init__(
    self,
    config: TransformerConfig,
    arrays: dict[str, np.ndarray | Array],
    *,
    is_split: bool = False,
  ):
    """Holds `arrays`, named and shaped as `array_shapes` says.

    Args:
      config: shapes and constants.
      arrays: the weights.
      is_split: keep every layer's weights apart, see `nn.stack`.

    Raises:
      ValueError: a name or a shape is off.
    """
    shapes = {name: np.shape(value) for name, value in arrays.items()}
    if shapes != array_shapes(config):
      wrong = set(shapes.items()) ^ set(array_shapes(config).items())
      raise ValueError(f'arrays do not fit the config: {sorted(wrong)}')
    self.config = config
    self.num_layers = config.num_layers
    self.num_kv_heads = config.num_kv_heads
    self.head_width = config.head_width
    self.width = config.width
    self.vocab_size = config.vocab_size
    self.max_len = config.max_len
    self.embedding = nnx.Param(jnp.asarray(arrays['embedding']))
    self.head = nnx.Param(jnp.asarray(arrays['head']))
    self.final_norm = nnx.Param(jnp.asarray(arrays['final_norm']))
    self.tiled, self.tiled_head = nnx.data(None), nnx.data(None)
    if is_split:
      self.layers = nnx.List(
        Layer({name: jnp.asarray(arrays[name][i]) for name in LAYER_ARRAYS})
        for i in range(config.num_layers)
      )
    else:
      self.layers = Layer(
        {name: jnp.asarray(arrays[name]) for name in LAYER_ARRAYS}
      )

  def add_tiles(self) -> None:
    """Keeps the matrices of split layers in tiles as well, for few rows.

    For decoding on a CPU (`nn.tiles`); it takes their memory once more.
    """
    self.tiled = tiles.cut_all(self.layers)
    self.tiled_head = nnx.Param(tiles.cut(self.head[...]))

  def embed(self, tokens: Int[Array, '*batch']) -> Float[Array, '*batch D']:
    """Input embeddings of the tokens."""
    return self.embedding[...][tokens]

  def logits(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch V']:
    """LM head on normed states, in float32."""
    head = self.head
    if self.tiled_head is not None and tiles.is_small(hidden):
      head = self.tiled_head
    return tiles.matmul(hidden, head[...]).astype(jnp.float32)

  def score(
    self,
    tokens: Int[Array, 'B T'],
    positions: Int[Array, 'B T'],
    ancestors: UInt32[Array, 'B T W'],
    cache: paged.PagedCache,
    taps: tuple[int, ...],
  ) -> base.Scored:
    """Runs the nodes over the committed prefix and their own ancestors."""

    def attend(layer_idx, q, k, v):
      return block_tree_attention.block_tree_attention(
        q,
        k,
        v,
        cache.pages.k,
        cache.pages.v,
        layer=layer_idx,
        page_ids=cache.table.page_ids,
        lengths=cache.table.lengths,
        ancestors=ancestors,
      )

    hidden, tapped, k, v = self.run(
      tokens, positions, attend, taps, keep_rows=True
    )
    return base.Scored(hidden=hidden, taps=tapped, k=k, v=v)

  def encode(
    self,
    tokens: Int[Array, 'B S'],
    positions: Int[Array, 'B S'],
    segments: Int[Array, 'B S'],
    taps: tuple[int, ...],
  ) -> tuple[Float[Array, 'B S D'], Float[Array, 'B S C D']]:
    """Runs whole sequences; token s sees its own segment up to itself."""
    same = segments[:, :, None] == segments[:, None, :]
    mask = same & jnp.tril(jnp.ones(same.shape[1:], bool))

    def attend(layer_idx, q, k, v):
      del layer_idx
      return dense_attention(q, k, v, mask)

    hidden, tapped, _, _ = self.run(
      tokens, positions, attend, taps, keep_rows=False
    )
    return hidden, tapped

  def layers_for(self, x: Float[Array, '*batch D']) -> nnx.Module:
    """The layers in the form that is fastest for so many rows."""
    is_tiled = self.tiled is not None and tiles.is_small(x)
    return self.tiled if is_tiled else self.layers

  def run(self, tokens, positions, attend, taps, *, keep_rows):
    """Embeds, scans the layers, norms; captures the tapped layers.

    `attend(layer_idx, q, k, v)` says who sees whom: q [B T N H], k and v
    [B T K H], rotated; it returns the heads' mixed values as q.
    """
    config = self.config
    slot_of_layer = np.full((config.num_layers,), len(taps), np.int32)
    for slot, layer in enumerate(taps):
      slot_of_layer[layer] = slot
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)
    x = self.embed(tokens)
    # One slot more than asked for: layers nobody taps write there.
    tapped = jnp.zeros((len(taps) + 1, *x.shape), x.dtype)

    n, k = config.num_heads, config.num_kv_heads
    eps = config.norm_eps

    weights = self.layers_for(x)

    def before(layer, x):
      return layer.before_attention(x, eps)

    def after(layer, x, mixed):
      return layer.after_attention(x, mixed, eps)

    def body(carry, layer_inputs):
      x, tapped = carry
      layer_idx, slot = layer_inputs
      heads = stack.apply(weights, layer_idx, before, x)
      heads = heads.reshape(*x.shape[:2], -1, config.head_width)
      queries = rope.apply(heads[:, :, :n], cos, sin)
      keys = rope.apply(heads[:, :, n : n + k], cos, sin)
      values = heads[:, :, n + k :]
      mixed = attend(layer_idx, queries, keys, values)
      mixed = mixed.reshape(*x.shape[:2], -1)
      x = stack.apply(weights, layer_idx, after, x, mixed)
      if taps:
        tapped = jax.lax.dynamic_update_index_in_dim(tapped, x, slot, axis=0)
      return (x, tapped), ((keys, values) if keep_rows else None)

    inputs = (
      jnp.arange(config.num_layers, dtype=jnp.int32),
      jnp.asarray(slot_of_layer),
    )
    (x, tapped), rows = jax.lax.scan(body, (x, tapped), inputs)
    hidden = layers.rms_norm(x, self.final_norm[...], config.norm_eps)
    tapped = jnp.moveaxis(tapped[: len(taps)], 0, 2)
    key_rows, value_rows = rows if keep_rows else (None, None)
    return hidden, tapped, key_rows, value_rows


def random(config: TransformerConfig, key: Key[Array, '']) -> Transformer:
  """A target with random weights, for tests and shape checks."""
  arrays = {}
  for name, shape in array_shapes(config).items():
    key, subkey = jax.random.split(key)
    if name.endswith('norm'):
      arrays[name] = 1 + 0.1 * jax.random.normal(subkey, shape)
    else:
      fan_in = shape[-2] if name != 'embedding' else 1
      arrays[name] = jax.random.normal(subkey, shape) / math.sqrt(fan_in)
  if config.tied:
    arrays['head'] = arrays['embedding'].T
  return Transformer(config, arrays)


def dense_attention(q, k, v, mask):
  """Softmax attention; q [B S N H], k and v [B S K H], mask [B S S]."""
  grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
  scores = jnp.einsum('BTKGH,BSKH->BKGTS', grouped, k)
  scores = scores.astype(jnp.float32) / math.sqrt(q.shape[-1])
  scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  out = jnp.einsum('BKGTS,BSKH->BTKGH', weights, v)
  return out.reshape(q.shape)
