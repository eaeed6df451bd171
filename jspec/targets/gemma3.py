# SPDX-License-Identifier: MIT
"""Gemma 3, text: by itself (`gemma3_text`) or out of the multimodal model.

Deviates from Llama in

  norms        gains are stored as w and applied as 1 + w; a second norm behind
               attention and behind the MLP, before they are added; norms of
               queries and keys
  layers       five that see a window and turn by one rotary base, then one that
               sees all and turns by another, which alone is scaled
  scores       times query_pre_attn_scalar ** -0.5, not H ** -0.5
  embeddings   times sqrt(D) on the way in, not in the head
  MLP          GELU by tanh
  logits       cap * tanh(logits / cap), where the config has a cap

Of the multimodal model the language model alone is loaded: images cannot be
given. Published configs leave out what transformers fills in, so the same is
filled in here.
"""

import math
from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.checkpoints import conversions, names
from jspec.nn import rope
from jspec.targets import architecture, hf_config, tables

_EXPECTED = {
  'attention_bias': (False, None),
  'attn_logit_softcapping': (None,),
  'hidden_activation': ('gelu_pytorch_tanh',),
  'quantization_config': (None,),
  'use_bidirectional_attention': (False, None),
}
# The last is null where it was not read.
_IGNORED = ('cache_implementation', 'final_logit_softcapping')
# Of the multimodal model: images, which are not given.
_OF_IMAGES = (
  *('boi_token_index', 'eoi_token_index', 'image_token_index'),
  *('mm_tokens_per_image', 'vision_config'),
)
_FILLED_IN = {
  'head_dim': 256,
  'max_position_embeddings': 131_072,
  'num_attention_heads': 8,
  'num_key_value_heads': 4,
  'query_pre_attn_scalar': 256,
  'rms_norm_eps': 1e-6,
  'sliding_window': 4096,
  'vocab_size': 262_208,
}
# Where the multimodal model has the language model, by version, and what not.
_PREFIXES = {
  'language_model.lm_head.': 'lm_head.',
  'language_model.model.': 'model.',
  'model.language_model.': 'model.',
}
_VISION = ('vision_tower.', 'multi_modal_projector.')
_VISION += tuple('model.' + prefix for prefix in _VISION)

_SCALING = {'rope_type': 'linear', 'factor': 8.0}
PRESETS = {
  'gemma3_1b': {
    'model_type': 'gemma3_text',
    'hidden_size': 1152,
    'intermediate_size': 6912,
    'num_hidden_layers': 26,
    'num_attention_heads': 4,
    'num_key_value_heads': 1,
    'max_position_embeddings': 32_768,
    'sliding_window': 512,
    'vocab_size': 262_144,
  },
  'gemma3_4b': {
    'model_type': 'gemma3',
    'text_config': {
      'hidden_size': 2560,
      'intermediate_size': 10_240,
      'num_hidden_layers': 34,
      'rope_scaling': _SCALING,
      'sliding_window': 1024,
    },
  },
  'gemma3_27b': {
    'model_type': 'gemma3',
    'text_config': {
      'head_dim': 128,
      'hidden_size': 5376,
      'intermediate_size': 21_504,
      'num_attention_heads': 32,
      'num_hidden_layers': 62,
      'num_key_value_heads': 16,
      'query_pre_attn_scalar': 168,
      'rope_scaling': _SCALING,
      'sliding_window': 1024,
    },
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  if left.get('model_type') == 'gemma3':
    text = left.pop('text_config', None)
    if not isinstance(text, Mapping):
      raise errors.UserError(f'{where}: text_config is {text!r}, not an object')
    # Transformers writes this one outside as well.
    text = {'tie_word_embeddings': True} | dict(text)
    outside = hf_config.flag(left, 'tie_word_embeddings', where, True)
    hf_config.finish(left, where, _OF_IMAGES)
    where += ': text_config'
    if text['tie_word_embeddings'] != outside:
      raise errors.UserError(f'{where}: tie_word_embeddings is said twice')
    left = text
  left = _FILLED_IN | left
  hf_config.expect(left, _EXPECTED, where)
  shared = hf_config.shared(left, where, tied=True)
  scalar = hf_config.number(left, 'query_pre_attn_scalar', where)
  cap = None
  if left.get('final_logit_softcapping') is not None:
    cap = hf_config.number(left, 'final_logit_softcapping', where)
  turns, local_turns = _rotary(left, shared['max_len'], where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=turns,
    local_rope=local_turns,
    windows=_windows(left, shared['num_layers'], where),
    qk_norm=True,
    post_norms=True,
    activation='gelu_tanh',
    attention_scale=scalar**-0.5,
    embedding_scale=math.sqrt(shared['width']),
    logit_cap=cap,
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table."""
  return tables.table(config, _NAMES)


def ignored(
  config: architecture.TransformerConfig, source: names.Source
) -> list[str]:
  """Returns tensors that hold nothing to load."""
  return tables.ignored(config, source, _NAMES)


def prepare(source: names.Source) -> names.Source:
  """The language model of a multimodal one, under its own names."""
  own = {}
  for name in source.names():
    found = [prefix for prefix in _PREFIXES if name.startswith(prefix)]
    if found:
      own[_PREFIXES[found[0]] + name.removeprefix(found[0])] = name
    elif not name.startswith(_VISION):
      own[name] = name
  return names.Renamed(source.where, source, own)


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
  """The config.json of what `writing` writes: the language model alone."""
  if fields['model_type'] != 'gemma3':
    return dict(fields)
  kept = {'tie_word_embeddings': True, **fields['text_config']}
  ids = {k: fields[k] for k in ('bos_token_id', 'eos_token_id') if k in fields}
  named = {'model_type': 'gemma3_text', 'architectures': ['Gemma3ForCausalLM']}
  return kept | ids | named


_NAMES = tables.Names(
  mlp_norm='pre_feedforward_layernorm.weight',
  post_attn_norm='post_attention_layernorm.weight',
  post_mlp_norm='post_feedforward_layernorm.weight',
  convert_norm=conversions.plus_one,
)


def _windows(left, num_layers, where):
  """The windows of the layers, by list or by pattern."""
  window = hf_config.count(left, 'sliding_window', where)
  patterns = {
    hf_config.count(left, name, where)
    for name in ('sliding_window_pattern', '_sliding_window_pattern')
    if name in left
  } or {6}
  if len(patterns) > 1:
    raise errors.UserError(f'{where}: two sliding_window_pattern')
  (pattern,) = patterns
  listed = hf_config.windows(left, num_layers, window, where)
  if listed is not None:
    return listed
  return tuple(
    None if (i + 1) % pattern == 0 else window for i in range(num_layers)
  )


def _rotary(left, max_len, where):
  """The rotations of layers that see all, and of those that see a window."""
  parameters = left.pop('rope_parameters', None)
  if parameters is None:
    left.setdefault('rope_theta', 1e6)
    left.setdefault('rope_local_base_freq', 1e4)
    base = hf_config.number(left, 'rope_local_base_freq', where)
    return hf_config.rotary(left, max_len, where), rope.RopeConfig(base=base)
  kinds = (hf_config.FULL, hf_config.SLIDING)
  if not isinstance(parameters, Mapping) or set(parameters) != set(kinds):
    raise errors.UserError(
      f'{where}: rope_parameters must hold {" and ".join(kinds)}'
    )
  return tuple(
    hf_config.rotary(
      {'rope_parameters': parameters[kind]},
      max_len,
      f'{where}: rope_parameters: {kind}',
    )
    for kind in kinds
  )
