# SPDX-License-Identifier: MIT
"""The decoder stack that every family runs on.

Layers (`targets.layer`) are stacked on a leading axis and scanned, so compile
time does not grow with depth. What differs from layer to layer (who sees whom,
the rotary base) rides along the scan as an index. Reads the cache, never writes
it.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import packing as packing_lib
from jspec.cache import forms, paged
from jspec.kernels.block_tree_attention import api as api_attention
from jspec.kernels.block_tree_attention import sharded as sharded_attention
from jspec.nn import layers, moe, packed_attention, qarray, spread, stack, tiles
from jspec.targets import architecture, base, quantised
from jspec.targets import layer as layer_lib
from jspec.targets import looks as looks_lib
from jspec.typing import Array, Float, Int, Key, UInt32

TransformerConfig = architecture.TransformerConfig
array_shapes = architecture.array_shapes


class Transformer(nnx.Module):
  """A frozen Llama-like decoder; implements `targets.base.Target`."""

  def __init__(
    self,
    config: TransformerConfig,
    arrays: dict[str, np.ndarray | qarray.Weight],
    *,
    is_split: bool = False,
    cache_form: str | None = None,
  ):
    """Holds `arrays`, named and shaped as `array_shapes` says.

    Args:
      config: shapes and constants.
      arrays: the weights.
      is_split: keep every layer's weights apart, see `nn.stack`.
      cache_form: in which a cache keeps its rows (`cache.forms`).

    Raises:
      ValueError: a name or a shape is off.
      UserError: there is no such form.
    """
    shapes = {name: np.shape(value) for name, value in arrays.items()}
    if shapes != array_shapes(config):
      wrong = set(shapes.items()) ^ set(array_shapes(config).items())
      raise ValueError(f'arrays do not fit the config: {sorted(wrong)}')
    self.config = config
    self.num_layers = config.num_layers
    self.num_kv_heads, self.head_width = architecture.cached_row(config)
    self.width = config.width
    self.vocab_size = config.vocab_size
    self.max_len = config.max_len
    self.cache_form = forms.checked(cache_form)
    # Of the columns of `qkv`; `targets.sharding` changes it.
    self.num_attention_shards = 1
    self.embedding = nnx.Param(jnp.asarray(arrays['embedding']))
    self.head = nnx.Param(jnp.asarray(arrays['head']))
    self.final_norm = nnx.Param(jnp.asarray(arrays['final_norm']))
    self.tiled, self.tiled_head = nnx.data(None), nnx.data(None)
    self.layers = layer_lib.assemble(config, arrays, is_split)

  def add_tiles(self, cut_one: Callable[[Array], Array] = tiles.cut) -> None:
    """Keeps the matrices of split layers in tiles as well, for few rows.

    For decoding on a CPU (`nn.tiles`); it takes their memory once more.

    Args:
      cut_one: another way to the same as `tiles.cut`.
    """
    self.tiled = tiles.cut_all(self.layers, moe.NOT_IN_TILES, cut_one)
    self.tiled_head = nnx.Param(cut_one(self.head[...]))

  def embed(self, tokens: Int[Array, '*batch']) -> Float[Array, '*batch D']:
    """Input embeddings of the tokens."""
    return spread.lookup(self.embedding[...], tokens)

  def logits(
    self, hidden: Float[Array, '*batch D']
  ) -> Float[Array, '*batch V']:
    """LM head on normed states, in float32."""
    head = self.head
    if self.tiled_head is not None and tiles.is_small(hidden):
      head = self.tiled_head
    logits = tiles.matmul(hidden, head[...]).astype(jnp.float32)
    cap = self.config.logit_cap
    return logits if cap is None else cap * jnp.tanh(logits / cap)

  def score(
    self,
    tokens: Int[Array, 'B T'],
    positions: Int[Array, 'B T'],
    ancestors: UInt32[Array, 'B T W'],
    cache: paged.PagedCache,
    taps: tuple[int, ...],
    packing: packing_lib.Packing | None = None,
  ) -> base.Scored:
    """Runs the nodes over the committed prefix and their own ancestors."""
    pools = (cache.pages.k, cache.pages.v)
    if forms.has_scales(self.cache_form) != bool(cache.pages.scales):
      raise ValueError(
        f'pages of {cache.pages.k.dtype} are not those of'
        f' cache_form={self.cache_form!r}: make them by it'
      )
    of_rows = dict(
      page_ids=cache.table.page_ids,
      lengths=cache.table.lengths,
      **cache.pages.scales,
      **cache.pages.shards,
    )
    attention = sharded_attention if cache.pages.shards else api_attention
    scale = self.config.attention_scale
    depths = None  # Of the nodes below the anchor; windows alone need them.
    if any(self.config.windows):
      lengths = cache.table.lengths
      is_packed = packing is not None
      depths = positions - (
        lengths[packing.row_of()] if is_packed else lengths[:, None]
      )

    def attend(window, layer_idx, q, k, v, sinks):
      seen = dict(layer=layer_idx, window=window, scale=scale, **of_rows)
      seen['sinks'] = sinks
      if packing is None:
        return attention.block_tree_attention(
          q, k, v, *pools, ancestors=ancestors, depths=depths, **seen
        )
      mixed = attention.packed(
        q[0],
        k[0],
        v[0],
        *pools,
        starts=packing.starts,
        max_nodes=packing.max_nodes,
        ancestors=ancestors[0],
        depths=None if depths is None else depths[0],
        **seen,
      )
      return mixed[None]

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
    packed = packed_attention.of(
      positions, segments, architecture.windows(self.config)
    )

    def attend(window, layer_idx, q, k, v, sinks):
      del layer_idx
      return packed(window, q, k, v, self.config.attention_scale, sinks)

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

    `attend(window, layer_idx, q, k, v, sinks)` says who sees whom: q [B T N H],
    k and v [B T K H], rotated; it returns the heads' mixed values as q.
    """
    config = self.config
    slot_of_layer = np.full((config.num_layers,), len(taps), np.int32)
    for slot, layer in enumerate(taps):
      slot_of_layer[layer] = slot
    looks = looks_lib.of(config)
    rotations = looks.rotations(positions)
    x = spread.stream(self.embed(tokens))
    # One slot more than asked for: layers nobody taps write there.
    tapped = jnp.zeros((len(taps) + 1, *x.shape), x.dtype)

    weights = self.layers_for(x)
    heads = layer_lib.heads(config, self.num_attention_shards)

    def after(layer, x, mixed):
      return layer.after_attention(x, mixed, config)

    def body(carry, layer_inputs):
      x, tapped = carry
      layer_idx, slot, look = layer_inputs
      rotation = looks.rotation(rotations, look)
      queries, keys, values = heads(weights, layer_idx, x, *rotation)
      keys, values = (
        forms.as_kept(part, self.cache_form) for part in (keys, values)
      )
      sinks = None
      if config.sinks:
        sinks = stack.apply(weights, layer_idx, layer_lib.Layer.head_sinks)
      mixed = looks.attend(
        attend, look, layer_idx, queries, keys, values, sinks
      )
      mixed = mixed.reshape(*x.shape[:2], -1).astype(x.dtype)
      x = spread.stream(stack.apply(weights, layer_idx, after, x, mixed))
      if taps:
        tapped = jax.lax.dynamic_update_index_in_dim(tapped, x, slot, axis=0)
      return (x, tapped), ((keys, values) if keep_rows else None)

    inputs = (
      jnp.arange(config.num_layers, dtype=jnp.int32),
      jnp.asarray(slot_of_layer),
      looks.indices(),
    )
    (x, tapped), rows = jax.lax.scan(body, (x, tapped), inputs)
    hidden = layers.rms_norm(x, self.final_norm[...], config.norm_eps)
    tapped = jnp.moveaxis(tapped[: len(taps)], 0, 2)
    key_rows, value_rows = rows if keep_rows else (None, None)
    return hidden, tapped, key_rows, value_rows


def random(
  config: TransformerConfig,
  key: Key[Array, ''],
  weights: str | None = None,
  cache_form: str | None = None,
) -> Transformer:
  """A target with random weights, for tests and shape checks.

  Args:
    config: shapes and constants.
    key: of the weights.
    weights: form of the matrices (`targets.quantised`).
    cache_form: as of `Transformer`.
  """
  arrays = {}
  for name, shape in array_shapes(config).items():
    key, subkey = jax.random.split(key)
    if name.endswith('norm'):
      arrays[name] = 1 + 0.1 * jax.random.normal(subkey, shape)
    else:
      fan_in = shape[-2] if name != 'embedding' else 1
      arrays[name] = jax.random.normal(subkey, shape) / math.sqrt(fan_in)
  if config.tied:
    arrays['head'] = arrays['embedding'].T / config.embedding_scale
  arrays = quantised.arrays(arrays, weights)
  return Transformer(config, arrays, cache_form=cache_form)
