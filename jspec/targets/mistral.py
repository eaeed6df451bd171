# SPDX-License-Identifier: MIT
"""Mistral, dense.

Deviates from Llama in that every layer may see a window (`sliding_window`;
4096 in the first release, null since).
"""

from collections.abc import Mapping
from typing import Any

from jspec.targets import architecture, hf_config, llama

_EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'quantization_config': (None,),
}

PRESETS = {
  'mistral_7b': {
    'model_type': 'mistral',
    'hidden_size': 4096,
    'intermediate_size': 14_336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'vocab_size': 32_000,
    'max_position_embeddings': 32_768,
    'rms_norm_eps': 1e-5,
    'rope_theta': 10_000.0,
    'sliding_window': 4096,
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  shared = hf_config.shared(left, where)
  # Absent, it is what transformers fills in: the first release's.
  left.setdefault('sliding_window', 4096)
  window = hf_config.optional_count(left, 'sliding_window', where)
  every = (window,) * shared['num_layers'] if window else ()
  listed = hf_config.windows(left, shared['num_layers'], window, where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    windows=every if listed is None else listed,
  )
  hf_config.finish(left, where)
  return architecture.checked(result, where)


prepare, rules, ignored = llama.prepare, llama.rules, llama.ignored
written = llama.written
