# SPDX-License-Identifier: MIT
"""Llama 1 to 3, and what is built like it (SmolLM2, TinyLlama, Yi).

The stack without deviations: pre-norm layers, grouped key-value heads, SiLU
gated MLP, rotary embedding with any scaling (`nn.rope`).
"""

from collections.abc import Mapping
from typing import Any

from jspec.checkpoints import names
from jspec.targets import architecture, hf_config, tables

# Written by other programs; change nothing.
_IGNORED = ('is_llama_config', 'transformers.js_config')
# Fields that change the model, with the only values this stack computes.
_EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'mlp_bias': (False, None),
  # Splits matmuls in another order; the result is the same only at 1.
  'pretraining_tp': (1, None),
  'quantization_config': (None,),
  'rope_interleaved': (False, None),
}

PRESETS = {
  'llama3p1_8b': {
    'model_type': 'llama',
    'hidden_size': 4096,
    'intermediate_size': 14_336,
    'num_hidden_layers': 32,
    'num_attention_heads': 32,
    'num_key_value_heads': 8,
    'vocab_size': 128_256,
    'max_position_embeddings': 131_072,
    'rms_norm_eps': 1e-5,
    'rope_theta': 500_000.0,
    'rope_scaling': {
      'rope_type': 'llama3',
      'factor': 8.0,
      'low_freq_factor': 1.0,
      'high_freq_factor': 4.0,
      'original_max_position_embeddings': 8192,
    },
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture that a `config.json` describes.

  Args:
    fields: the parsed JSON.
    where: its path, for messages.

  Raises:
    errors.UserError: a field is missing, unknown, or asks for what this stack
      does not compute.
  """
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  shared = hf_config.shared(left, where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table of a folder."""
  return tables.table(config, tables.Names())


def prepare(source: names.Source) -> names.Source:
  """The tensors as `rules` names them: here, as they are."""
  return source


def ignored(
  config: architecture.TransformerConfig, source: names.Source
) -> list[str]:
  """Returns tensors that hold nothing to load."""
  return tables.ignored(config, source, tables.Names())


def written(fields: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the config.json of what `writing` writes: here, the same."""
  # Layers that draft are not the target's.
  return {**fields, **{k: 0 for k in fields if k == 'num_nextn_predict_layers'}}
