# SPDX-License-Identifier: MIT
"""Llama models in GGUF files: metadata to a config, tensor names to leaves.

llama.cpp rotates neighbouring pairs (0, 1), (2, 3), ...; jspec, like Hugging
Face, rotates halves (0, H/2), (1, H/2 + 1), .... The converter of llama.cpp
therefore interleaves the rows of Q and K in each head, and loading undoes it:

  on disk   0  H/2  1  H/2+1  2 ...   ->   0  1  2 ...  H/2  H/2+1 ...

The file does not carry Llama 3's scaling rule but its result, the divisors of
the frequencies (`rope_freqs.weight`); the rule is recovered from them.
"""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec import errors
from jspec.checkpoints import gguf, names
from jspec.nn import rope
from jspec.targets import architecture, tables

_ROPE_FREQS = 'rope_freqs.weight'

# Namespaces that say nothing about the architecture.
_OTHER_NAMESPACES = ('general.', 'tokenizer.', 'quantize.')

_IGNORED = frozenset(
  {
    # Whether the scaling was trained or added later.
    'llama.rope.scaling.finetuned',
    'llama.tensor_data_layout',
  }
)


def config(file: gguf.GGUFFile) -> architecture.TransformerConfig:
  """Returns the architecture; every `llama.*` key is accounted for."""
  fields = _Fields(file.metadata, file.where)
  arch = file.metadata.get('general.architecture')
  if arch != 'llama':
    raise errors.UserError(
      f'{file.where}: general.architecture {arch!r} is not supported; use a'
      " 'llama' file"
    )
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
  result = architecture.TransformerConfig(
    num_layers=fields.count('block_count'),
    width=width,
    ff_width=fields.count('feed_forward_length'),
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_width=head_width,
    vocab_size=vocab_size,
    max_len=fields.count('context_length'),
    norm_eps=fields.number('attention.layer_norm_rms_epsilon'),
    rope=_rope(fields, file, head_width),
    tied='output.weight' not in file.names(),
  )
  fields.finish()
  return architecture.checked(result, file.where)


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table of a GGUF Llama file."""
  q_width = config.num_heads * config.head_width
  kv_width = config.num_kv_heads * config.head_width
  q_rows = functools.partial(rotate_half_rows, num_heads=config.num_heads)
  k_rows = functools.partial(rotate_half_rows, num_heads=config.num_kv_heads)
  return tables.table(
    config,
    tables.Names(
      embedding='token_embd.weight',
      head='output.weight',
      final_norm='output_norm.weight',
      layer='blk.{}.',
      attn_norm='attn_norm.weight',
      q='attn_q.',
      k='attn_k.',
      v='attn_v.',
      out='attn_output.',
      mlp_norm='ffn_norm.weight',
      gate='ffn_gate.',
      up='ffn_up.',
      down='ffn_down.',
    ),
    convert_q=lambda values: q_rows(values).T,
    convert_k=lambda values: k_rows(values).T,
    shape_q=(q_width, config.width),
    shape_k=(kv_width, config.width),
  )


def ignored(file: gguf.GGUFFile) -> list[str]:
  """Returns tensors that `config` has already turned into numbers."""
  return [name for name in file.names() if name == _ROPE_FREQS]


def rotate_half_rows(values: np.ndarray, num_heads: int) -> np.ndarray:
  """Reorders interleaved rotary rows [N*H, D] into two halves a head."""
  rows, width = values.shape
  pairs = values.reshape(num_heads, rows // num_heads // 2, 2, width)
  return pairs.swapaxes(1, 2).reshape(rows, width)


def _rope(
  fields: '_Fields', file: gguf.GGUFFile, head_width: int
) -> rope.RopeConfig:
  base = fields.number('rope.freq_base', 10000.0)
  factor = fields.number('rope.scaling.factor', 1.0)
  # A factor without a type is linear scaling, as llama.cpp reads it.
  kind = fields.take('rope.scaling.type', 'linear' if factor != 1 else 'none')
  # Older writers used this key; it means linear scaling.
  old_factor = fields.number('rope.scale_linear', 1.0)
  if old_factor != 1.0 and kind == 'none':
    kind, factor = 'linear', old_factor
  if kind not in ('none', 'linear'):
    raise errors.UserError(
      f'{file.where}: llama.rope.scaling.type {kind!r} is not supported; use a'
      " file with 'none' or 'linear'"
    )
  if kind == 'linear' and _ROPE_FREQS in file.names():
    raise errors.UserError(
      f'{file.where}: linear rope scaling together with {_ROPE_FREQS} is not'
      ' supported; convert the model again'
    )
  if _ROPE_FREQS in file.names():
    return _llama3(base, file.read(_ROPE_FREQS), head_width, file.where)
  if kind == 'linear':
    return rope.RopeConfig(base=base, kind='linear', factor=factor)
  return rope.RopeConfig(base=base, kind='default')


def _llama3(
  base: float, divisors: np.ndarray, head_width: int, where: str
) -> rope.RopeConfig:
  """Finds the Llama 3 rule (low 1, high 4, from 8192) behind its divisors."""
  factor = float(divisors.max())
  exponents = np.arange(0, head_width, 2, dtype=np.float64) / head_width
  turns = 8192 / (2 * np.pi * base**exponents)
  smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
  expected = 1.0 / ((1.0 - smooth) / factor + smooth)
  if divisors.shape != expected.shape or not np.allclose(
    divisors, expected, rtol=1e-3
  ):
    raise errors.UserError(
      f'{where}: {_ROPE_FREQS} is not the Llama 3 rule (low 1, high 4, original'
      ' length 8192); load the Hugging Face folder instead'
    )
  return rope.RopeConfig(
    base=base,
    kind='llama3',
    factor=factor,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_len=8192,
  )


class _Fields:
  """The `llama.*` metadata, each key asked for once."""

  def __init__(self, metadata: Mapping[str, Any], where: str):
    self._left = {
      key: value
      for key, value in metadata.items()
      if not key.startswith(_OTHER_NAMESPACES)
    }
    self._where = where

  def take(self, key: str, default: Any = None) -> Any:
    value = self._left.pop(f'llama.{key}', default)
    if value is None:
      raise errors.UserError(f'{self._where}: llama.{key} is missing')
    return value

  def count(self, key: str, default: int | None = None) -> int:
    value = self.take(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
      raise errors.UserError(
        f'{self._where}: llama.{key} is {value!r}, not a count (one value for'
        ' all layers)'
      )
    return value

  def number(self, key: str, default: float | None = None) -> float:
    value = self.take(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
      raise errors.UserError(
        f'{self._where}: llama.{key} is {value!r}, not a number'
      )
    return float(value)

  def expect(self, key: str, expected: Any) -> None:
    value = self.take(key, expected)
    if value != expected:
      raise errors.UserError(
        f'{self._where}: llama.{key} {value!r} is not supported here, only'
        f' {expected!r}'
      )

  def finish(self) -> None:
    # A file in one piece may carry the split keys of its origin.
    if self._left.pop('split.count', 0) > 1:
      raise errors.UserError(
        f'{self._where} is one of several pieces; merge them with llama.cpp'
        ' gguf-split --merge'
      )
    rest = sorted(
      key
      for key in self._left
      if key not in _IGNORED and not key.startswith('split.')
    )
    if rest:
      raise errors.UserError(
        f'{self._where}: metadata {", ".join(rest)} is not known to jspec and'
        ' may change the model'
      )
