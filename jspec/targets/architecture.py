# SPDX-License-Identifier: MIT
"""What a decoder stack is made of: its constants, and its arrays by name.

A `TransformerConfig` without the fields that have a default is a Llama; each of
those is one way in which a family differs from it. Arrays of layers are stacked
on a leading axis over the layers that have them: in a mixture model, layers
with a gated MLP and layers with experts are numbered apart.
"""

import dataclasses
from typing import Any

from jspec import errors
from jspec.nn import moe, rope
from jspec.targets import latent as latent_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
  """Shapes and constants of a decoder stack; letters as in jspec.typing.

  Attributes:
    num_layers: L.
    width: D.
    ff_width: F of the gated MLP.
    num_heads: N.
    num_kv_heads: K.
    head_width: H.
    vocab_size: V.
    max_len: positions the model was made for.
    norm_eps: of all norms.
    rope: how heads are rotated.
    tied: whether the head is the embedding.
    qkv_bias: whether queries, keys and values have a bias.
    out_bias: whether what attention adds has one.
    sinks: whether each head has a logit without a value in its softmax.
    qk_norm: whether queries and keys are normed, head by head.
    windows: the tokens each layer sees, itself included, None for all of them;
      () where every layer sees all.
    local_rope: how heads of layers with a window are rotated, where that is
      not as in the others.
    attention_scale: factor on the scores; None means H ** -0.5.
    post_norms: whether what a half of a layer adds is normed first.
    activation: of the MLP, a key of `nn.layers.GATES`.
    embedding_scale: a factor that `embedding` has in it; a tied head has not.
    experts: the mixture that stands in for the gated MLP; None for none.
    dense_layers: of a model with experts, the layers that have the MLP.
    latent: of attention over latents; its rows are what the cache holds. None
      for plain heads.
    logit_cap: c of c * tanh(logits / c); None for no cap.
  """

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
  qkv_bias: bool = False
  out_bias: bool = False
  sinks: bool = False
  qk_norm: bool = False
  windows: tuple[int | None, ...] = ()
  local_rope: rope.RopeConfig | None = None
  attention_scale: float | None = None
  post_norms: bool = False
  activation: str = 'silu'
  embedding_scale: float = 1.0
  logit_cap: float | None = None
  experts: moe.MoeConfig | None = None
  dense_layers: tuple[int, ...] = ()
  latent: latent_lib.LatentConfig | None = None


def checked(config: TransformerConfig, where: str) -> TransformerConfig:
  """Refuses sizes that cannot belong together.

  Raises:
    errors.UserError: which, and in which file.
  """
  if config.num_heads % config.num_kv_heads:
    raise errors.UserError(
      f'{where}: {config.num_heads} query heads cannot share'
      f' {config.num_kv_heads} key-value heads evenly'
    )
  if config.head_width % 2:
    raise errors.UserError(
      f'{where}: head width {config.head_width} is odd; rotary embedding needs'
      ' an even one'
    )
  return config


def windows(config: TransformerConfig) -> tuple[int | None, ...]:
  """The tokens that each layer sees, None for all."""
  return config.windows or (None,) * config.num_layers


def deviations(config: TransformerConfig) -> dict[str, Any]:
  """What is not as in a Llama, by field, as JSON values."""
  return {
    field.name: value
    for field, value in zip(
      dataclasses.fields(config), dataclasses.astuple(config), strict=True
    )
    if field.default is not dataclasses.MISSING and value != field.default
  }


def cached_row(config: TransformerConfig) -> tuple[int, int]:
  """Heads and numbers of a head of a key, and of a value, in the cache."""
  if config.latent is not None:
    return 1, config.latent.row_width
  return config.num_kv_heads, config.head_width


def qkv_widths(config: TransformerConfig) -> tuple[int, int, int]:
  """Columns of query, key and value."""
  heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
  return tuple(num * config.head_width for num in heads)


def has_experts(config: TransformerConfig, layer: int) -> bool:
  """Whether a mixture stands in for the layer's gated MLP."""
  return config.experts is not None and layer not in config.dense_layers


def layer_shapes(
  config: TransformerConfig, layer: int = 0
) -> dict[str, tuple[int, ...]]:
  """Names and shapes of the arrays of a layer."""
  c = config
  shapes = {'attn_norm': (c.width,)}
  mixed_width = c.num_heads * c.head_width
  if c.latent is None:
    shapes['qkv'] = (c.width, sum(qkv_widths(c)))
  else:
    shapes |= latent_lib.array_shapes(c.latent, c.width, c.num_heads)
    mixed_width = c.num_heads * c.latent.value_width
  shapes |= {'out': (mixed_width, c.width), 'mlp_norm': (c.width,)}
  if has_experts(c, layer):
    shapes |= moe.array_shapes(c.experts)
  else:
    shapes['gate_up'] = (c.width, 2 * c.ff_width)
    shapes['down'] = (c.ff_width, c.width)
  if c.qkv_bias:
    shapes['qkv_bias'] = (sum(qkv_widths(c)),)
  if c.out_bias:
    shapes['out_bias'] = (c.width,)
  if c.sinks:
    shapes['sinks'] = (c.num_heads,)
  if c.qk_norm:
    shapes |= {'q_norm': (c.head_width,), 'k_norm': (c.head_width,)}
  if c.post_norms:
    shapes |= {'post_attn_norm': (c.width,), 'post_mlp_norm': (c.width,)}
  return shapes


def array_shapes(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
  """Names and shapes of all arrays a `Transformer` is made of."""
  c = config
  shapes = {
    'embedding': (c.vocab_size, c.width),
    'head': (c.width, c.vocab_size),
    'final_norm': (c.width,),
  }
  for name, at in layers_with(c).items():
    shapes[name] = (len(at), *layer_shapes(c, at[0])[name])
  return shapes


def row(config: TransformerConfig, layer: int) -> int:
  """The row of a layer in the arrays that only layers of its kind have."""
  kinds = [has_experts(config, i) for i in range(layer + 1)]
  return kinds[:-1].count(kinds[-1])


def layers_with(config: TransformerConfig) -> dict[str, list[int]]:
  """Names of the arrays of layers, and which layers have them."""
  found = {}
  for layer in range(config.num_layers):
    for name in layer_shapes(config, layer):
      found.setdefault(name, []).append(layer)
  return found
