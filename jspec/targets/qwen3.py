# SPDX-License-Identifier: MIT
"""Qwen3, dense.

Deviates from Llama in a norm of queries and keys, head by head, before they are
rotated, and in a head width that is not width / heads. Windows as in Qwen2.
"""

from collections.abc import Mapping
from typing import Any

from jspec.targets import architecture, hf_config, llama, qwen2

EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'quantization_config': (None,),
}

PRESETS = {
  'qwen3_8b': {
    'model_type': 'qwen3',
    'head_dim': 128,
    'hidden_size': 4096,
    'intermediate_size': 12_288,
    'num_hidden_layers': 36,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'vocab_size': 151_936,
    'max_position_embeddings': 40_960,
    'max_window_layers': 36,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1e6,
    'sliding_window': None,
    'use_sliding_window': False,
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, EXPECTED, where)
  left.setdefault('head_dim', 128)  # As transformers fills it in.
  shared = hf_config.shared(left, where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    windows=qwen2.windows(left, shared['num_layers'], where),
    qk_norm=True,
  )
  hf_config.finish(left, where)
  return architecture.checked(result, where)


prepare, rules, ignored = llama.prepare, llama.rules, llama.ignored
written = llama.written
