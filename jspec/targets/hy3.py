# SPDX-License-Identifier: MIT
"""Hy3 (`hy_v3`): Qwen3's attention, DeepSeek-V3's kind of experts.

Deviates from Llama in norms of queries and keys, and in experts behind the
first dense layers: sigmoid scores, a bias that chooses and does not weigh, no
groups, a shared expert. Its layer of multi-token prediction is not the
target's: `jspec import` makes a drafter of it.
"""

from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.checkpoints import names
from jspec.nn import moe
from jspec.targets import (
  architecture,
  deepseek_v3,
  hf_config,
  llama,
  tables,
)

_EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'mlp_bias': (False, None),
  'moe_router_enable_expert_bias': (True,),
  'moe_router_use_sigmoid': (True,),
  'qk_norm': (True,),
  'quantization_config': (None,),
}
# Of training, of the layer that drafts, and in what precision sums are taken.
_IGNORED = (
  *('enable_attention_fp32_softmax', 'enable_lm_head_fp32'),
  *('enable_moe_fp32_combine', 'use_grouped_mm'),
  *('eod_token_id', 'sep_token_id', 'num_nextn_predict_layers'),
  *('output_router_logits', 'router_aux_loss_coef'),
)
_NAMES = tables.Names(
  router='mlp.router.gate.weight',
  expert_bias='mlp.expert_bias',
  shared_expert='mlp.shared_mlp.',
)
_KINDS = ('dense', 'sparse')

PRESETS = {
  'hy3_295b_a21b': {
    'model_type': 'hy_v3',
    'first_k_dense_replace': 1,
    'head_dim': 128,
    'hidden_size': 4096,
    'intermediate_size': 13_312,
    'max_position_embeddings': 262_144,
    'moe_intermediate_size': 1536,
    'num_attention_heads': 64,
    'num_experts': 192,
    'num_experts_per_tok': 8,
    'num_hidden_layers': 80,
    'num_key_value_heads': 8,
    'num_shared_experts': 1,
    'rms_norm_eps': 1e-5,
    'rope_parameters': {'rope_type': 'default', 'rope_theta': 11_158_840.0},
    'route_norm': True,
    'router_scaling_factor': 2.826,
    'vocab_size': 120_832,
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  shared = hf_config.shared(left, where)
  ff_width = hf_config.count(left, 'moe_intermediate_size', where)
  hf_config.expect(left, {'expert_hidden_dim': (ff_width,)}, where)
  num_shared = hf_config.whole(left, 'num_shared_experts', where)
  experts = moe.MoeConfig(
    width=shared['width'],
    num_experts=hf_config.count(left, 'num_experts', where),
    top_k=hf_config.count(left, 'num_experts_per_tok', where),
    ff_width=ff_width,
    shared_ff_width=num_shared * ff_width,
    score='sigmoid',
    has_bias=True,
    renormalise=hf_config.flag(left, 'route_norm', where, True),
    scale=hf_config.number(left, 'router_scaling_factor', where),
  )
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    qk_norm=True,
    experts=experts,
    dense_layers=_dense_layers(left, shared['num_layers'], where),
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def _dense_layers(left, num_layers, where):
  """Layers with an MLP, by their number and, where it is there, by a list."""
  first = hf_config.whole(left, 'first_k_dense_replace', where)
  counted = tuple(range(min(first, num_layers)))
  kinds = left.pop('mlp_layer_types', None)
  if kinds is None:
    return counted
  wanted = [_KINDS[i >= first] for i in range(num_layers)]
  if kinds != wanted:
    raise errors.UserError(
      f'{where}: mlp_layer_types is not what first_k_dense_replace={first} says'
    )
  return counted


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table."""
  return tables.table(config, _NAMES)


prepare, ignored = llama.prepare, deepseek_v3.ignored
written = llama.written
