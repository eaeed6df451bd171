# SPDX-License-Identifier: MIT
"""DeepSeek-V3 and R1, and what is built like them (Kimi K2).

Deviates from Llama in

  attention  multi-head latent attention (`targets.latent`); rotary pairs are
             neighbours on disk; YaRN also lengthens the scores (`mscale`)
  MLP        experts behind the first few layers: sigmoid scores, a bias that
             chooses and does not weigh, the best groups of experts first, a
             shared expert

Experts of groups that are not chosen are never taken, as in DeepSeek's own
code; transformers before 5 gave them a score of 0, which a negative biased
score loses to. The layers of multi-token prediction behind the last one are not
the target's: `jspec import` makes a drafter of them.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jspec import errors
from jspec.checkpoints import conversions, names
from jspec.nn import moe
from jspec.targets import architecture, hf_config, latent, llama, tables

_EXPECTED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu',),
  'moe_layer_freq': (1,),
  'pretraining_tp': (1, None),
  'quantization_config': (None,),
  'scoring_func': ('sigmoid',),
  'topk_method': ('noaux_tc',),
}
# Of training, and of layers that draft.
_IGNORED = (
  *('aux_loss_alpha', 'ep_size', 'num_nextn_predict_layers'),
  *('output_router_logits', 'router_aux_loss_coef', 'seq_aux'),
)

PRESETS = {
  'deepseek_v3': {
    'model_type': 'deepseek_v3',
    'first_k_dense_replace': 3,
    'hidden_size': 7168,
    'intermediate_size': 18_432,
    'kv_lora_rank': 512,
    'max_position_embeddings': 163_840,
    'moe_intermediate_size': 2048,
    'n_group': 8,
    'n_routed_experts': 256,
    'n_shared_experts': 1,
    'norm_topk_prob': True,
    'num_attention_heads': 128,
    'num_experts_per_tok': 8,
    'num_hidden_layers': 61,
    'num_key_value_heads': 128,
    'q_lora_rank': 1536,
    'qk_nope_head_dim': 128,
    'qk_rope_head_dim': 64,
    'rms_norm_eps': 1e-6,
    'rope_scaling': {
      'beta_fast': 32,
      'beta_slow': 1,
      'factor': 40,
      'mscale': 1.0,
      'mscale_all_dim': 1.0,
      'original_max_position_embeddings': 4096,
      'type': 'yarn',
    },
    'rope_theta': 10_000,
    'routed_scaling_factor': 2.5,
    'topk_group': 4,
    'v_head_dim': 128,
    'vocab_size': 129_280,
  },
}


def config(
  fields: Mapping[str, Any], where: str
) -> architecture.TransformerConfig:
  """Returns the architecture of a `config.json`; see `llama.config`."""
  left = dict(fields)
  hf_config.expect(left, _EXPECTED, where)
  if not hf_config.flag(left, 'rope_interleave', where, True):
    raise errors.UserError(
      f'{where}: rope_interleave false is not supported, only true'
    )
  of_heads = latent.LatentConfig(
    q_rank=hf_config.optional_count(left, 'q_lora_rank', where),
    kv_rank=hf_config.count(left, 'kv_lora_rank', where),
    plain_width=hf_config.count(left, 'qk_nope_head_dim', where),
    rotary_width=hf_config.count(left, 'qk_rope_head_dim', where),
    value_width=hf_config.count(left, 'v_head_dim', where),
  )
  head_width = of_heads.plain_width + of_heads.rotary_width
  hf_config.expect(left, {'qk_head_dim': (head_width,)}, where)
  # Transformers calls the rotated part the head.
  hf_config.expect(left, {'head_dim': (of_heads.rotary_width, None)}, where)
  heads = left.get('num_attention_heads')
  hf_config.expect(left, {'num_key_value_heads': (heads, None)}, where)
  left['head_dim'] = head_width
  shared = hf_config.shared(left, where)
  first = hf_config.whole(left, 'first_k_dense_replace', where)
  factor = _stretch(left, where)
  result = architecture.TransformerConfig(
    **shared,
    ff_width=hf_config.count(left, 'intermediate_size', where),
    rope=hf_config.rotary(left, shared['max_len'], where),
    attention_scale=factor**2 / math.sqrt(head_width),
    latent=of_heads,
    experts=_experts(left, shared['width'], where),
    dense_layers=tuple(range(min(first, shared['num_layers']))),
  )
  hf_config.finish(left, where, _IGNORED)
  return architecture.checked(result, where)


def _experts(left, width, where):
  """The mixture."""
  ff_width = hf_config.count(left, 'moe_intermediate_size', where)
  num_shared = hf_config.optional_count(left, 'n_shared_experts', where) or 0
  return moe.MoeConfig(
    width=width,
    num_experts=hf_config.count(left, 'n_routed_experts', where),
    top_k=hf_config.count(left, 'num_experts_per_tok', where),
    ff_width=ff_width,
    shared_ff_width=num_shared * ff_width,
    score='sigmoid',
    has_bias=True,
    renormalise=hf_config.flag(left, 'norm_topk_prob', where, True),
    scale=hf_config.number(left, 'routed_scaling_factor', where),
    num_groups=hf_config.count(left, 'n_group', where),
    top_groups=hf_config.count(left, 'topk_group', where),
  )


def _stretch(left, where):
  """Takes YaRN's two `mscale` out of `left`.

  Returns the factor on queries and keys, rotated or not; what is more on those
  that are is left as `attention_factor`.
  """
  name = 'rope_scaling' if left.get('rope_scaling') else 'rope_parameters'
  said = left.get(name)
  if not isinstance(said, Mapping):
    return 1.0
  rest = dict(said)
  every = _optional_number(rest, 'mscale_all_dim', where)
  turned = _optional_number(rest, 'mscale', where)
  left[name] = rest
  if rest.get('rope_type', rest.get('type')) != 'yarn':
    return 1.0
  factor = hf_config.number(dict(rest), 'factor', where)

  def amount(mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

  if turned and every and rest.get('attention_factor') is None:
    rest['attention_factor'] = amount(turned) / amount(every)
  return amount(every) if every else 1.0


def _optional_number(left, name, where):
  if left.get(name) is None:
    left.pop(name, None)
    return 0.0
  return hf_config.number(left, name, where)


def rules(config: architecture.TransformerConfig) -> list[names.Rule]:
  """Returns the rename table."""
  return tables.table(config, tables.Names(), attention=_attention)


def _attention(config, of, i):
  """Rules of the first half of layer `i`."""
  c, width = config.latent, config.width
  stem = of.layer.format(i) + 'self_attn.'
  head = config.head_width
  queries = _halves(head, c.plain_width)
  keys = _halves(c.row_width, c.kv_rank)
  by_head = conversions.Conversion(
    lambda values: values.reshape(config.num_heads, -1, c.kv_rank),
    lambda values: values.reshape(-1, c.kv_rank),
    keeps_axes=False,
  )
  rank = c.q_rank or 0
  made = 'q_b_proj' if rank else 'q_proj'
  out = [
    names.Rule(of.layer.format(i) + of.attn_norm, 'attn_norm', (i,)),
    names.Rule(
      stem + made + '.weight',
      'queries',
      (i,),
      queries,
      (config.num_heads * head, rank or width),
    ),
    names.Rule(
      stem + 'kv_a_proj_with_mqa.weight',
      'latents',
      (i, names.ALL, slice(rank, None)),
      keys,
      (c.row_width, width),
    ),
    names.Rule(stem + 'kv_a_layernorm.weight', 'kv_norm', (i,)),
    names.Rule(
      stem + 'kv_b_proj.weight',
      'kv_up',
      (i,),
      by_head,
      (config.num_heads * (c.plain_width + c.value_width), c.kv_rank),
    ),
    names.Rule(stem + 'o_proj.weight', 'out', (i,), names.transpose),
  ]
  if rank:
    box = (i, names.ALL, slice(0, rank))
    out += [
      names.Rule(stem + 'q_a_proj.weight', 'latents', box, names.transpose),
      names.Rule(stem + 'q_a_layernorm.weight', 'q_latent_norm', (i,)),
    ]
  return out


def _halves(head_width: int, plain_width: int) -> conversions.Conversion:
  """[out, in] as [in, out], the rotary pairs of each head as two halves."""
  width = head_width - plain_width
  plain = np.arange(plain_width)
  pairs = plain_width + np.arange(width).reshape(-1, 2).T.reshape(-1)
  order = np.concatenate([plain, pairs])

  def reordered(rows, order):
    by_head = rows.reshape(-1, head_width, rows.shape[-1])
    return by_head[:, order].reshape(rows.shape)

  return conversions.Conversion(
    lambda values: reordered(values, order).T,
    lambda values: reordered(values.T, np.argsort(order)),
    is_turned=True,
    units=(1, head_width),
  )


def ignored(
  config: architecture.TransformerConfig, source: names.Source
) -> list[str]:
  """Returns tensors that hold nothing to load: what drafts, too."""
  found = llama.ignored(config, source)
  present, layer = set(source.names()), config.num_layers
  while f'model.layers.{layer}.eh_proj.weight' in present:
    found += [n for n in present if n.startswith(f'model.layers.{layer}.')]
    layer += 1
  return found


prepare, written = llama.prepare, llama.written
