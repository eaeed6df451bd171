# SPDX-License-Identifier: MIT
"""The config.json of a target that came out of a GGUF file.

Nothing is taken on trust: the family must read the same architecture out of the
fields that are written. Fields are named as by transformers 4, which 5 reads.
"""

from typing import Any

from jspec import errors
from jspec.targets import architecture, families, hf_config

# By the architecture that a file names.
_CALLED = {
  'gemma3': ('gemma3_text', 'Gemma3ForCausalLM'),
  'llama': ('llama', 'LlamaForCausalLM'),
  'qwen2': ('qwen2', 'Qwen2ForCausalLM'),
  'qwen3': ('qwen3', 'Qwen3ForCausalLM'),
}


def fields(
  config: architecture.TransformerConfig, arch: str, where: str
) -> dict[str, Any]:
  """Returns a config.json.

  Args:
    config: as `gguf_model.config` read it.
    arch: as the file names it.
    where: the file, for messages.

  Raises:
    errors.UserError: a config.json cannot say what the file does.
  """
  model_type, class_name = _CALLED[arch]
  found = {
    'model_type': model_type,
    'architectures': [class_name],
    'head_dim': config.head_width,
    'hidden_size': config.width,
    'intermediate_size': config.ff_width,
    'max_position_embeddings': config.max_len,
    'num_attention_heads': config.num_heads,
    'num_hidden_layers': config.num_layers,
    'num_key_value_heads': config.num_kv_heads,
    'rms_norm_eps': config.norm_eps,
    'tie_word_embeddings': config.tied,
    'vocab_size': config.vocab_size,
    **hf_config.rotary_fields(config.rope),
  }
  found |= _gemma3(config) if arch == 'gemma3' else {'hidden_act': 'silu'}
  try:
    again = families.find(found, where).config(found, where)
  except errors.UserError as error:
    raise _unsaid(where) from error
  if again != config:
    raise _unsaid(where)
  return found


def _unsaid(where):
  return errors.UserError(
    f'{where}: a config.json cannot say what this file does, such as its'
    ' windows or rotary scaling; export the Hugging Face folder that it was'
    ' made of'
  )


def _gemma3(config):
  kinds = (
    hf_config.SLIDING if window else hf_config.FULL for window in config.windows
  )
  found = {
    'hidden_activation': 'gelu_pytorch_tanh',
    'layer_types': list(kinds),
    'query_pre_attn_scalar': round(config.attention_scale**-2),
    'sliding_window': max(window or 0 for window in config.windows or (0,)),
  }
  if config.local_rope is not None:
    found['rope_local_base_freq'] = config.local_rope.base
  if config.logit_cap is not None:
    found['final_logit_softcapping'] = config.logit_cap
  return found
