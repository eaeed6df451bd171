# SPDX-License-Identifier: MIT
"""Qwen2 and Qwen2.5, dense.

Deviates from Llama in biases on queries, keys and values, and may let layers
from `max_window_layers` on see a window (`use_sliding_window`; no published
model turns it on).
"""

from collections.abc import Mapping
from typing import Any

from jspec.targets import architecture, hf_config, llama

_EXPECTED = {
  'hidden_act': ('silu',),
  'quantization_config': (None,),
  'use_mrope': (False, None),
}

PRESETS = {
  'qwen2p5_7b': {
    'model_type': 'qwen2',
    'hidden_size': 3584,
    'intermediate_size': 18_944,
    'num_hidden_layers': 28,
    'num_attention_heads': 28,
    'num_key_value_heads': 4,
    'vocab_size': 152_064,
    'max_position_embeddings': 32_768,
    'max_window_layers': 28,
    'rms_norm_eps': 1e-6,
    'rope_theta': 1e6,
    'sliding_window': 131_072,
    'use_sliding_window': False,
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  shared = hf_config.shared(left, where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    windows=windows(left, shared['num_layers'], where),
    qkv_bias=True,
  )
  hf_config.finish(left, where)
  return architecture.checked(result, where)


def windows(
  left: dict[str, Any], num_layers: int, where: str
) -> tuple[int | None, ...]:
  """Takes what Qwen says about windows out of `left`."""
  is_on = hf_config.flag(left, 'use_sliding_window', where, False)
  window = hf_config.optional_count(left, 'sliding_window', where)
  full = hf_config.optional_count(left, 'max_window_layers', where)
  window = window if is_on else None
  listed = hf_config.windows(left, num_layers, window, where)
  if listed is not None:
    return listed
  if window is None:
    return ()
  # The default of transformers where the config does not say.
  full = 28 if full is None else full
  found = tuple(window if i >= full else None for i in range(num_layers))
  return found if any(found) else ()


prepare, rules, ignored = llama.prepare, llama.rules, llama.ignored
written = llama.written
