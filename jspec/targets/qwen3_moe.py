# SPDX-License-Identifier: MIT
"""Qwen3 with a mixture of experts.

Deviates from Qwen3 in that layers have experts in place of the MLP: softmax
over all, the best few, renormalised where the config says (`norm_topk_prob`).
`mlp_only_layers` and `decoder_sparse_step` leave the MLP in some.
"""

from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.nn import moe
from jspec.targets import architecture, hf_config, llama, qwen2, qwen3

# Of training.
_IGNORED = ('output_router_logits', 'router_aux_loss_coef')

PRESETS = {
  'qwen3_30b_a3b': {
    'model_type': 'qwen3_moe',
    'decoder_sparse_step': 1,
    'head_dim': 128,
    'hidden_size': 2048,
    'intermediate_size': 6144,
    'mlp_only_layers': [],
    'moe_intermediate_size': 768,
    'norm_topk_prob': True,
    'num_attention_heads': 32,
    'num_experts': 128,
    'num_experts_per_tok': 8,
    'num_hidden_layers': 48,
    'num_key_value_heads': 4,
    'vocab_size': 151_936,
    'max_position_embeddings': 40_960,
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
  hf_config.expect(left, qwen3.EXPECTED, where)
  shared = hf_config.shared(left, where)
  dense = _dense_layers(left, shared['num_layers'], where)
  # The name depends on the version of transformers.
  found = [n for n in ('num_experts', 'num_local_experts') if n in left]
  if len(found) != 1:
    raise errors.UserError(
      f'{where}: give one of num_experts and num_local_experts'
    )
  experts = moe.MoeConfig(
    width=shared['width'],
    num_experts=hf_config.count(left, found[0], where),
    top_k=hf_config.count(left, 'num_experts_per_tok', where),
    ff_width=hf_config.count(left, 'moe_intermediate_size', where),
    renormalise=hf_config.flag(left, 'norm_topk_prob', where, False),
  )
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    windows=qwen2.windows(left, shared['num_layers'], where),
    qk_norm=True,
    experts=experts,
    dense_layers=dense,
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def _dense_layers(left, num_layers, where):
  """Layers that have an MLP."""
  left.setdefault('decoder_sparse_step', 1)
  step = hf_config.count(left, 'decoder_sparse_step', where)
  listed = left.pop('mlp_only_layers', None) or []
  if not isinstance(listed, list) or not set(listed) <= set(range(num_layers)):
    raise errors.UserError(
      f'{where}: mlp_only_layers is {listed!r}, not a list of layers'
    )
  return tuple(i for i in range(num_layers) if i in listed or (i + 1) % step)


prepare, rules, ignored = llama.prepare, llama.rules, llama.ignored
written = llama.written
