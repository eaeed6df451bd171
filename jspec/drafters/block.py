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
in training, once per committed token in decoding. A layer may give context rows
weights of their own (`has_context_kv`: DFlare), see only so far back
(`layer_windows`) and mix each slot with the one before (`conv_group`: DFlash2).

Not here: how the context is fused (`fusion`), the head, the loss. `q` is kept
apart from `kv` because context rows need no query.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from jspec import tree
from jspec.cache import paged
from jspec.drafters import conv
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.kernels.draft_block_attention import api as draft_block_attention
from jspec.kernels.draft_block_attention import sharded as sharded_attention
from jspec.nn import exchange, fused, layers, remat, rope, spread, stack, tiles
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
  has_context_kv: bool = False
  layer_windows: tuple[int | None, ...] | None = None
  conv_group: int = 0

  @property
  def rope(self) -> rope.RopeConfig:
    """Plain rotary embedding: the family never scales positions."""
    return rope.RopeConfig(base=self.rope_base)


def array_shapes(config: BlockConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the stacked arrays of the backbone."""
  c = config
  shapes = {
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
  if c.has_context_kv:
    shapes['context_kv'] = shapes['kv']
  if c.conv_group:
    for name, shape in conv.array_shapes(c.width, c.conv_group).items():
      shapes['attn_' + name] = shapes['mlp_' + name] = (c.num_layers, *shape)
  return shapes


def random_arrays(config: BlockConfig, key: Key[Array, '']) -> dict[str, Array]:
  """Initial weights: normal 0.02, residual outputs smaller with depth.

  Convolutions start as the identity.
  """
  arrays = {}
  for name, shape in array_shapes(config).items():
    if name.endswith('conv_base'):
      arrays[name] = jnp.broadcast_to(conv.identity(), shape)
      continue
    if name.endswith('conv_proj'):
      arrays[name] = jnp.zeros(shape, jnp.float32)
      continue
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
    for name in ('context_kv', 'attn_conv_base', 'attn_conv_proj'):
      setattr(self, name, _optional(arrays, name))
    for name in ('mlp_conv_base', 'mlp_conv_proj'):
      setattr(self, name, _optional(arrays, name))

  def rows(self, x, config, cos, sin):
    """Key (normed, rotated) and value rows of slots [B, S, D]."""
    return self._rows(x, self.kv[...], config, cos, sin)

  def context_rows(self, context, config, cos, sin):
    """Key and value rows of the fused context [B, S, D]."""
    kv = self.kv if self.context_kv is None else self.context_kv
    return self._rows(context, kv[...], config, cos, sin)

  def _rows(self, x, kv, config, cos, sin):
    widths = (config.num_kv_heads * config.head_width,) * 2
    keys, values = (
      part.reshape(*x.shape[:2], -1, config.head_width)
      for part in fused.columns(x, kv, widths, config.num_kv_heads)
    )
    keys = layers.rms_norm(keys, self.k_norm[...], config.norm_eps)
    return rope.apply(keys, cos, sin), values

  def __call__(self, x, config, cos, sin, attend, block_size):
    """Returns the new residual stream of the slots `x` [B, T, D]."""

    def mix(normed):
      keys, values = self.rows(normed, config, cos, sin)
      queries = tiles.matmul(normed, self.q[...]).reshape(
        *x.shape[:2], config.num_heads, config.head_width
      )
      queries = layers.rms_norm(queries, self.q_norm[...], config.norm_eps)
      mixed = attend(rope.apply(queries, cos, sin), keys, values)
      return tiles.matmul(mixed.reshape(*x.shape[:2], -1), self.out[...])

    def feed_forward(normed):
      return layers.gated_mlp(normed, self.gate_up[...], self.down[...])

    def around(function, normed, name):
      if not config.conv_group:
        return function(normed)
      base = getattr(self, name + '_conv_base')[...]
      proj = getattr(self, name + '_conv_proj')[...]
      mixing = conv.coefficients(normed, base, proj, config.conv_group)
      inner = conv.apply(normed, mixing[:, :, 0], block_size)
      return conv.apply(function(inner), mixing[:, :, 1], block_size)

    normed = layers.rms_norm(x, self.attn_norm[...], config.norm_eps)
    x = x + around(mix, normed, 'attn')
    normed = layers.rms_norm(x, self.mlp_norm[...], config.norm_eps)
    return x + around(feed_forward, normed, 'mlp')


def _attend(*arrays, **named):
  """`draft_block_attention` on the mesh that is traced for, if there is one."""
  found = spread.now()
  if found is None:
    return draft_block_attention.draft_block_attention(*arrays, **named)
  rows, blocks = found.batch(arrays[0].shape)
  num_kv_heads = arrays[1].shape[3]
  heads = found.shared(found.heads, num_kv_heads)
  exchanged = exchange.find(found, arrays[0].shape, num_kv_heads)
  if exchanged is not None:
    arrays, blocks = exchanged.give(*arrays), None
    heads = exchanged.within
  mixed = sharded_attention.draft_block_attention(
    *arrays, mesh=found.mesh, heads=heads, rows=rows, blocks=blocks, **named
  )
  return mixed if exchanged is None else exchanged.take_back(mixed)


def _optional(arrays, name):
  return nnx.Param(arrays[name]) if name in arrays else nnx.data(None)


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
    self,
    context_of: Callable[[Array], Array],
    positions: Int[Array, 'B S'],
  ) -> tuple[Float[Array, 'L B S K H'], Float[Array, 'L B S K H']]:
    """Key and value rows of the context, for every layer.

    Args:
      context_of: the fused context [B, S, D] of a layer, by number.
      positions: of the tokens.
    """
    config = self.config
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)

    def rows(layer, context):
      return layer.context_rows(context, config, cos, sin)

    def body(carry, index):
      context = context_of(index)
      return carry, stack.apply(self._for(context), index, rows, context)

    return jax.lax.scan(body, None, jnp.arange(config.num_layers))[1]

  def train(
    self,
    x: Float[Array, 'B A T D'],
    positions: Int[Array, 'B A T'],
    context_of: Callable[[Array], Array],
    context_positions: Int[Array, 'B S'],
    anchors: Int[Array, 'B A'],
    segments: Int[Array, 'B S'],
  ) -> Float[Array, 'B A T D']:
    """Runs all blocks of a sequence at once.

    Args:
      x: embedded slots.
      positions: position of each slot.
      context_of: the fused context [B, S, D] of a layer, by number.
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
    # Keys and values of the context are made inside the loop over layers, not
    # by `context_rows`: its gradient would add up whole stacks, layer by layer.
    context_cos, context_sin = rope.cos_sin(
      context_positions, config.rope, config.head_width
    )

    def split(heads):
      return heads.reshape(rows, num_anchors, block_size, -1, config.head_width)

    def run(x, layer, index, window):
      layer_k, layer_v = layer.context_rows(
        context_of(index), config, context_cos, context_sin
      )

      def attend(q, k, v):
        blocks = (split(heads) for heads in (q, k, v))
        mixed = _attend(
          *blocks,
          layer_k,
          layer_v,
          anchors=anchors,
          segments=segments,
          window=window,
        )
        return mixed.reshape(q.shape)

      x = layer(x, config, cos, sin, attend, block_size)
      return spread.stream(x)

    if config.layer_windows is not None:
      # A window is known when compiled, so these layers are not a loop.
      for index, window in enumerate(config.layer_windows):
        layer = stack.layer(self.layers, index)
        one = remat.layer(functools.partial(run, window=window))
        flat = one(flat, layer, jnp.asarray(index))
      return flat.reshape(x.shape)

    def body(x, inputs):
      layer, index = inputs
      return run(x, layer, index, None), None

    inputs = (self.layers, jnp.arange(config.num_layers))
    flat, _ = jax.lax.scan(remat.layer(body), flat, inputs)
    return flat.reshape(x.shape)

  def score(
    self,
    x: Float[Array, 'B T D'],
    pages: paged.Pages,
    table: paged.PageTable,
    offset: Int[Array, 'B'] | None = None,
  ) -> Float[Array, 'B T D']:
    """Runs one block per row behind the committed context; writes nothing.

    Args:
      x: embedded slots.
      pages: context rows.
      table: whose they are.
      offset: positions between the context and the block, of tokens that are
        drafts themselves and have no context rows; None: none.
    """
    config = self.config
    rows, block_size = x.shape[:2]
    depths = jnp.broadcast_to(jnp.arange(block_size), (rows, block_size))
    if offset is not None:
      depths = depths + offset[:, None]
    positions = table.lengths[:, None] + depths
    cos, sin = rope.cos_sin(positions, config.rope, config.head_width)
    words = tree.block_words(rows, block_size)

    def run(layer, x, index, window):
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
          depths=None if window is None else depths,
          window=window,
        )

      return layer(x, config, cos, sin, attend, block_size)

    if config.layer_windows is not None:
      for index, window in enumerate(config.layer_windows):
        layer = stack.layer(self._for(x), index)
        x = run(layer, x, jnp.asarray(index), window)
      return x

    def body(index, x):
      def one(layer, x, index):
        return run(layer, x, index, None)

      return stack.apply(self._for(x), index, one, x, index)

    return jax.lax.fori_loop(0, config.num_layers, body, x)
