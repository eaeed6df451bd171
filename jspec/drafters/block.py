# SPDX-License-Identifier: MIT
"""The block backbone of the DFlash family.

A block is [anchor, MASK, MASK, ...]. Its slots are the only queries; what the
target knows enters every layer as extra key and value rows, made from the fused
context by the layer's own key and value weights (arXiv 2602.06036, section 3):

  rows = [context, norm(x)];  keys = rope(k_norm(rows W_k));  values = rows W_v
  x += out(softmax(rope(q_norm(norm(x) W_q)) keys^T / sqrt(H)) values)
  x += mlp(norm(x))

A slot sees all slots of its own block (both directions) and the context before
the anchor, not at it; blocks do not see each other. Context rows skip the input
norm and are the same for every block, so they are computed once: per sequence
in training, once per committed token in decoding.

Not here: how the context is fused, the head, the loss. `q` is kept apart from
`kv` because context rows need no query.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.kernels.draft_block_attention import api as draft_block_attention
from jspec.nn import layers, rope, stack, tiles
from jspec.typing import Array, Float, Int, Key


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig:
  """Shapes and constants of the backbone; letters as in jspec.typing."""

  num_layers: int
  width: int
  ff_width: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  norm_eps: float
  rope_base: float

  @property
  def rope(self) -> rope.RopeConfig:
    """Plain rotary embedding: the family never scales positions."""
    return rope.RopeConfig(base=self.rope_base)


def array_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the stacked arrays of the backbone."""
  c = config
  return {
    'attn_norm': (c.num_layers, c.width),
    'q': (c.num_layers, c.width, c.num_heads * c.head_width),
    'kv': (c.num_layers, c.width, 2 * c.num_kv_heads * c.head_width),
    'q_norm': (c.num_layers, c.head_width),
    'k_norm': (c.num_layers, c.head_width),
    'out': (c.num_layers, c.num_heads * c.head_width, c.width),
    'mlp_norm': (c.num_layers, c.width),
    'gate_up': (c.num_layers, c.width, 2 * c.ff_width),
    'down': (c.num_layers, c.ff_width, c.width),
  }


def random_arrays(config: BlockConfig, key: Key[Array, '']) -> dict[str, Array]:
  """Initial weights: normal 0.02, residual outputs smaller with depth."""
  arrays = {}
  for name, shape in array_shapes(config).items():
    key, subkey = jax.random.split(key)
    if name.endswith('norm'):
      arrays[name] = jnp.ones(shape, jnp.float32)
      continue
    is_residual = name in ('out', 'down')
    scale = 0.02 / math.sqrt(2 * config.num_layers) if is_residual else 0.02
    arrays[name] = scale * jax.random.normal(subkey, shape, jnp.float32)
  return arrays


class BlockLayer(nnx.Module):
  """One layer, or all of them stacked on a leading axis."""

  def __init__(self, arrays: dict[str, Array]):
    self.attn_norm = nnx.Param(arrays['attn_norm'])
    self.q = nnx.Param(arrays['q'])
    self.kv = nnx.Param(arrays['kv'])
    self.q_norm = nnx.Param(arrays['q_norm'])
    self.k_norm = nnx.Param(arrays['k_norm'])
    self.out = nnx.Param(arrays['out'])
    self.mlp_norm = nnx.Param(arrays['mlp_norm'])
    self.gate_up = nnx.Param(arrays['gate_up'])
    self.down = nnx.Param(arrays['down'])

  def rows(self, x, config, cos, sin):
    """Key (normed, rotated) and value rows of `x` [B, S, D]."""
    heads = tiles.matmul(x, self.kv[...])
    heads = heads.reshape(*x.shape[:2], -1, config.head_width)
    keys, values = jnp.split(heads, 2, axis=2)
    keys = layers.rms_norm(keys, self.k_norm[...], config.norm_eps)
    return rope.apply(keys, cos, sin), values

  def __call__(self, x, config, cos, sin, attend):
    """Returns the new residual stream of the slots `x` [B, T, D]."""
    normed = layers.rms_norm(x, self.attn_norm[...], config.norm_eps)
    keys, values = self.rows(normed, config, cos, sin)
    queries = tiles.matmul(normed, self.q[...]).reshape(
      *x.shape[:2], config.num_heads, config.head_width
    )
    queries = layers.rms_norm(queries, self.q_norm[...], config.norm_eps)
    mixed = attend(rope.apply(queries, cos, sin), keys, values)
    x = x + tiles.matmul(mixed.reshape(*x.shape[:2], -1), self.out[...])
    normed = layers.rms_norm(x, self.mlp_norm[...], config.norm_eps)
    return x + layers.gated_mlp(normed, self.gate_up[...], self.down[...])


class Block(nnx.Module):
  """The stack of layers, in its training and its decoding form."""

  def __init__(self, config: BlockConfig, arrays: dict[str, Array]):
    self.config = config
    self.layers = BlockLayer(arrays)
    self.tiled = nnx.data(None)

  def split_layers(self) -> None:
    """Takes the form for decoding on a CPU (`nn.stack`, `nn.tiles`)."""
    self.layers = stack.split(self.layers, self.config.num_layers)
    self.tiled = tiles.cut_all(self.layers)

  def _for(self, x):
    """The layers in the form that suits so many rows."""
    is_tiled = self.tiled is not None and tiles.is_small(x)
    return self.tiled if is_tiled else self.layers

  def context_rows(
    self, context: Float[Array, 'B S D'], positions: Int[Array, 'B S']
  ) -> tuple[Float[Array, 'L B S K H'], Float[Array, 'L B S K H']]:
    """Key and value rows of the fused context, for every layer."""
    config = self.config
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)

    def rows(layer):
      return layer.rows(context, config, cos, sin)

    def body(carry, index):
      return carry, stack.apply(self._for(context), index, rows)

    return jax.lax.scan(body, None, jnp.arange(config.num_layers))[1]

  def train(
    self,
    x: Float[Array, 'B A T D'],
    positions: Int[Array, 'B A T'],
    context: Float[Array, 'B S D'],
    context_positions: Int[Array, 'B S'],
    anchors: Int[Array, 'B A'],
    segments: Int[Array, 'B S'],
  ) -> Float[Array, 'B A T D']:
    """Runs all blocks of a sequence at once.

    Args:
      x: embedded slots.
      positions: position of each slot.
      context: fused context, one row a token.
      context_positions: position of each token.
      anchors: row of each anchor, negative where there is no block; a block
        sees the rows before it in its own document.
      segments: document of each token, 0 for padding.
    """
    config = self.config
    rows, num_anchors, block_size, width = x.shape
    flat = x.reshape(rows, num_anchors * block_size, width)
    positions = positions.reshape(rows, num_anchors * block_size)
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)
    # Keys and values of the context are made inside the scan over layers, not
    # by `context_rows`: its gradient would add up whole stacks, layer by layer.
    context_cos, context_sin = rope.cos_sin(
      context_positions, config.rope, config.head_width
    )

    def split(heads):
      return heads.reshape(rows, num_anchors, block_size, -1, config.head_width)

    def body(x, layer):
      layer_k, layer_v = layer.rows(context, config, context_cos, context_sin)

      def attend(q, k, v):
        blocks = (split(heads) for heads in (q, k, v))
        mixed = draft_block_attention.draft_block_attention(
          *blocks, layer_k, layer_v, anchors=anchors, segments=segments
        )
        return mixed.reshape(q.shape)

      return layer(x, config, cos, sin, attend), None

    flat, _ = jax.lax.scan(body, flat, self.layers)
    return flat.reshape(x.shape)

  def score(
    self,
    x: Float[Array, 'B T D'],
    pages: paged.Pages,
    table: paged.PageTable,
  ) -> Float[Array, 'B T D']:
    """Runs one block per row behind the committed context; writes nothing."""
    config = self.config
    rows, block_size = x.shape[:2]
    positions = table.lengths[:, None] + jnp.arange(block_size)
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)
    words = tree.block_words(rows, block_size)

    def run(layer, x, index):
      def attend(q, k, v):
        return block_tree_attention.block_tree_attention(
          q,
          k,
          v,
          pages.k,
          pages.v,
          layer=index,
          page_ids=table.page_ids,
          lengths=table.lengths,
          ancestors=words,
        )

      return layer(x, config, cos, sin, attend)

    def body(index, x):
      return stack.apply(self._for(x), index, run, x, index)

    return jax.lax.fori_loop(0, config.num_layers, body, x)
