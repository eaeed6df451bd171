# SPDX-License-Identifier: MIT
"""Models in GGUF files: metadata to a config, tensor names to leaves.

  llama    rows of Q and K are interleaved in each head, see below
  qwen2    biases of queries, keys and values; rows as they are
  qwen3    norms of queries and keys
  gemma3   gains stored as 1 + w; five layers that see a window, then one that
           sees all; a rotary base of its own for windows

llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ... of a Llama; jspec, like
Hugging Face, rotates halves (0, H/2), (1, H/2 + 1), .... The converter of
llama.cpp therefore interleaves the rows of Q and K, and loading undoes it:

  on disk   0  H/2  1  H/2+1  2 ...   ->   0  1  2 ...  H/2  H/2+1 ...

The others llama.cpp rotates by halves as well. What a file need not say is
filled in as llama.cpp does.
"""

import math
from typing import Any

import numpy as np

from jspec import errors
from jspec.checkpoints import conversions, gguf, names
from jspec.nn import rope
from jspec.targets import architecture, gguf_fields, gguf_rope, tables

ARCHITECTURES = ('llama', 'qwen2', 'qwen3', 'gemma3')

# Of Gemma 3, where the file does not say.
_WINDOW_PATTERN = 6
_WINDOW_BASE = 10000.0
# Layers of the one size whose scores are not scaled by the head width.
_WIDE_LAYERS = 62

_NAMES = tables.Names(
  embedding='token_embd.weight',
  head='output.weight',
  final_norm='output_norm.weight',
  layer='blk.{}.',
  attn_norm='attn_norm.weight',
  q='attn_q.',
  k='attn_k.',
  v='attn_v.',
  q_norm='attn_q_norm.weight',
  k_norm='attn_k_norm.weight',
  out='attn_output.',
  mlp_norm='ffn_norm.weight',
  post_attn_norm='post_attention_norm.weight',
  post_mlp_norm='post_ffw_norm.weight',
  gate='ffn_gate.',
  up='ffn_up.',
  down='ffn_down.',
)


def family(file: gguf.GGUFFile) -> str:
  """Returns the architecture's name.

  Raises:
    errors.UserError: it is none of `ARCHITECTURES`.
  """
  arch = file.metadata.get('general.architecture')
  if arch not in ARCHITECTURES:
    raise errors.UserError(
      f'{file.where}: general.architecture {arch!r} is not supported; use a'
      f' file of {", ".join(ARCHITECTURES)}'
    )
  return arch


def config(file: gguf.GGUFFile) -> architecture.TransformerConfig:
  """Returns the architecture; every key under its name is accounted for.

  Raises:
    errors.UserError: a key is missing, unknown, or asks for what this stack
      does not compute.
  """
  arch = family(file)
  fields = gguf_fields.Fields(file.metadata, file.where, arch)
  width = fields.count('embedding_length')
  num_heads = fields.count('attention.head_count')
  num_kv_heads = fields.count('attention.head_count_kv', num_heads)
  head_width = fields.count('attention.key_length', width // num_heads)
  if 'token_embd.weight' not in file.names():
    raise errors.UserError(f'{file.where}: tensor token_embd.weight is missing')
  vocab_size = file.shape('token_embd.weight')[0]
  fields.expect('attention.value_length', head_width)
  fields.expect('rope.dimension_count', head_width)
  fields.expect('vocab_size', vocab_size)
  fields.expect('expert_count', 0)
  fields.expect('expert_used_count', 0)
  fields.expect('attention.causal', True)
  num_layers = fields.count('block_count')
  base = None if arch == 'gemma3' else 10000.0
  own = {'llama': {}, 'qwen2': {'qkv_bias': True}, 'qwen3': {'qk_norm': True}}
  if arch == 'gemma3':
    own[arch] = _gemma3(fields, num_layers, width, num_heads, head_width)
  result = architecture.TransformerConfig(
    num_layers=num_layers,
    width=width,
    ff_width=fields.count('feed_forward_length'),
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_width=head_width,
    vocab_size=vocab_size,
    max_len=fields.count('context_length'),
    norm_eps=fields.number('attention.layer_norm_rms_epsilon'),
    rope=gguf_rope.rotary(fields, file, head_width, base),
    tied='output.weight' not in file.names(),
    **own[arch],
  )
  fields.finish()
  return architecture.checked(result, file.where)


def _gemma3(
  fields: gguf_fields.Fields,
  num_layers: int,
  width: int,
  num_heads: int,
  head_width: int,
) -> dict[str, Any]:
  """What of a Gemma 3 is not as in a Llama."""
  scalar = width // num_heads if num_layers == _WIDE_LAYERS else head_width
  found = dict(
    qk_norm=True,
    post_norms=True,
    activation='gelu_tanh',
    attention_scale=scalar**-0.5,
    embedding_scale=math.sqrt(width),
    logit_cap=fields.number('final_logit_softcapping', 0.0) or None,
  )
  window = fields.optional_count('attention.sliding_window')
  if window is None:
    return found
  pattern = fields.take('attention.sliding_window_pattern', _WINDOW_PATTERN)
  if isinstance(pattern, int) and not isinstance(pattern, bool):
    sees_window = [(i + 1) % pattern != 0 for i in range(num_layers)]
  else:
    sees_window = pattern
  if len(sees_window) != num_layers:
    raise errors.UserError(
      f'{fields.where}: gemma3.attention.sliding_window_pattern has'
      f' {len(sees_window)} layers of {num_layers}'
    )
  base = fields.number('rope.freq_base_swa', _WINDOW_BASE)
  return found | dict(
    windows=tuple(window if local else None for local in sees_window),
    local_rope=rope.RopeConfig(base=base),
  )


def rules(
  config: architecture.TransformerConfig, arch: str
) -> list[names.Rule]:
  """Returns the rename table of a file of that architecture."""
  if arch != 'llama':
    return tables.table(config, _NAMES)
  q_width, kv_width, _ = architecture.qkv_widths(config)
  turned = conversions.Conversion(
    lambda values: rotate_half_rows(values, config.head_width).T,
    lambda values: interleave_rows(values.T, config.head_width),
    is_turned=True,
    units=(1, config.head_width),
    moves=lambda rows: rotate_half_rows(rows, config.head_width),
  )
  return tables.table(
    config,
    _NAMES,
    convert_q=turned,
    convert_k=turned,
    shape_q=(q_width, config.width),
    shape_k=(kv_width, config.width),
  )


def ignored(file: gguf.GGUFFile) -> list[str]:
  """Returns tensors that `config` has already turned into numbers."""
  return [name for name in file.names() if name == gguf_rope.FREQUENCIES]


def rotate_half_rows(values: np.ndarray, head_width: int) -> np.ndarray:
  """Reorders interleaved rotary rows [N*H, D] into two halves a head."""
  pairs = values.reshape(-1, head_width // 2, 2, values.shape[-1])
  return pairs.swapaxes(1, 2).reshape(values.shape)


def interleave_rows(values: np.ndarray, head_width: int) -> np.ndarray:
  """The other way round."""
  halves = values.reshape(-1, 2, head_width // 2, values.shape[-1])
  return halves.swapaxes(1, 2).reshape(values.shape)
