# SPDX-License-Identifier: MIT
"""Checkpoints of block drafters: keys of config.json and names of tensors.

Keys are Hugging Face's where it has them; tensor names are AngelSpec's, [out,
in] on disk and [in, out] in memory. A method's keys are the common ones and
those of its parts, so a key of another method is refused as unknown.
"""

from collections.abc import Collection, Mapping
from typing import Any

from flax import nnx

from jspec.checkpoints import names
from jspec.drafters import block, block_config
from jspec.drafters import method as method_lib
from jspec.typing import Array

# Field -> key, for all methods.
COMMON = method_lib.KEYS | {
  'num_layers': 'num_hidden_layers',
  'mask_token_id': 'mask_token_id',
  'block_size': 'block_size',
  'label_shift': 'label_shift',
}
# The same for parts and options; absent ones take the config's defaults.
OPTIONAL = {
  'layer_windows': 'layer_windows',
  'fusion': 'fusion',
  'gate_temperature': 'gate_temperature',
  'correction_width': 'hidden_correction_intermediate_size',
  'markov_rank': 'markov_rank',
  'markov_kind': 'markov_head_type',
  'has_confidence': 'enable_confidence_head',
  'confidence_sees_token': 'confidence_head_with_markov',
  'selector_rank': 'selector_rank',
  'selector_size': 'selector_size',
  'conv_group': 'conv_group_size',
  'num_cuts': 'num_cuts',
  'shared': 'shared',
  'support': 'support',
  'min_expected_accepted': 'min_expected_accepted',
  'tree_size': 'tree_size',
  'beam_width': 'beam_width',
}
DECODING = ('support', 'min_expected_accepted', 'tree_size', 'beam_width')
# DFly says twice whether it corrects.
CORRECTS = 'enable_hidden_correction'


def from_json(
  method: str,
  fixed: Mapping[str, Any],
  parts: Collection[str],
  raw: Mapping[str, Any],
  where: str,
) -> block_config.BlockDrafterConfig:
  """The config of a method, from the keys of config.json.

  Args:
    method: its name.
    fixed: fields the method sets itself.
    parts: fields of its own that a checkpoint may say.
    raw: the keys; what belongs to the folder and not to the drafter is gone.
    where: the file, for messages.

  Raises:
    UserError: a key is missing, unknown, or has a value that does not fit.
  """
  raw = dict(raw)
  if 'correction_width' in parts and not raw.pop(CORRECTS, True):
    raw[OPTIONAL['correction_width']] = 0
  fields = method_lib.read(raw, _keys(parts), COMMON.values(), method, where)
  return block_config.BlockDrafterConfig(method=method, **fixed, **fields)


def to_json(
  config: block_config.BlockDrafterConfig, parts: Collection[str]
) -> dict[str, Any]:
  """The keys of config.json; `from_json` reads them back."""
  raw = {key: getattr(config, name) for name, key in _keys(parts).items()}
  if 'correction_width' in parts:
    raw[CORRECTS] = config.correction_width > 0
  return raw


def _keys(parts):
  optional = ('layer_windows', *parts, *DECODING)
  return COMMON | {name: OPTIONAL[name] for name in optional}


def leaves(drafter: Any) -> dict[str, nnx.Param]:
  """All parameters of a `BlockDrafter`, by leaf name."""
  found = {
    name: getattr(drafter.block.layers, name)
    for name in block.array_shapes(drafter.config.block)
  }
  found |= drafter.fusion.leaves()
  found['final_norm'] = drafter.final_norm
  for part in ('token_head', 'selector', 'confidence'):
    module = getattr(drafter, part)
    if module is not None:
      found |= {
        f'{part}.{name}': leaf
        for name, leaf in vars(module).items()
        if isinstance(leaf, nnx.Param)
      }
  return found


def saved(drafter: Any) -> dict[str, Array]:
  """What a checkpoint holds of each leaf: input scales are folded in."""
  found = {name: leaf[...] for name, leaf in leaves(drafter).items()}
  return found | drafter.fusion.saved()


def rules(config: block_config.BlockDrafterConfig) -> list[names.Rule]:
  """The rename table of all tensors."""
  turn, rule = names.transpose, names.Rule
  found = [
    rule('context_norm.weight', 'context_norm'),
    rule('final_norm.weight', 'final_norm'),
  ]
  if 'concat' in config.fusion:
    found += [rule('context_proj.weight', 'context_proj', (), turn)]
  if 'layer_mix' in config.fusion:
    found += [rule('layer_fusion_weights', 'mix')]
  if config.fusion == 'gated':
    found += [rule('layer_gate', 'gate')]
    found += [
      rule(f'candidate_norms.{i}.weight', 'tap_norms', (i,))
      for i in range(len(config.taps))
    ]
  for i in range(config.num_layers):
    found += _layer(config, i)
  if config.correction_width:
    found += _correction(config)
  if config.markov_rank:
    found += _markov(config)
  if config.selector_rank:
    found += [
      rule('selector.prev_embed.weight', 'selector.prev'),
      rule('selector.next_embed.weight', 'selector.next'),
      rule('selector.proj.weight', 'selector.proj', (), turn),
    ]
  if config.has_confidence:
    found += [
      rule('confidence_head.proj.weight', 'confidence.proj', (), turn),
      rule('confidence_head.proj.bias', 'confidence.bias'),
    ]
  return found


def _layer(config, i):
  turn, rule, everything = names.transpose, names.Rule, names.ALL
  kv_width = config.num_kv_heads * config.head_width
  first, second = slice(0, kv_width), slice(kv_width, 2 * kv_width)
  gate = slice(0, config.ff_width)
  up = slice(config.ff_width, 2 * config.ff_width)
  at, attn = f'layers.{i}.', f'layers.{i}.self_attn.'
  found = [
    rule(at + 'input_layernorm.weight', 'attn_norm', (i,)),
    rule(attn + 'q_proj.weight', 'q', (i,), turn),
    rule(attn + 'k_proj.weight', 'kv', (i, everything, first), turn),
    rule(attn + 'v_proj.weight', 'kv', (i, everything, second), turn),
    rule(attn + 'q_norm.weight', 'q_norm', (i,)),
    rule(attn + 'k_norm.weight', 'k_norm', (i,)),
    rule(attn + 'o_proj.weight', 'out', (i,), turn),
    rule(at + 'post_attention_layernorm.weight', 'mlp_norm', (i,)),
    rule(at + 'mlp.gate_proj.weight', 'gate_up', (i, everything, gate), turn),
    rule(at + 'mlp.up_proj.weight', 'gate_up', (i, everything, up), turn),
    rule(at + 'mlp.down_proj.weight', 'down', (i,), turn),
  ]
  if config.has_context_kv:
    boxes = {'k': (i, everything, first), 'v': (i, everything, second)}
    found += [
      rule(f'{attn}{name}_proj_target.weight', 'context_kv', box, turn)
      for name, box in boxes.items()
    ]
  if config.conv_group:
    for name in ('attn', 'mlp'):
      found += [
        rule(f'{at}{name}_conv.base', f'{name}_conv_base', (i,)),
        rule(f'{at}{name}_conv.proj.weight', f'{name}_conv_proj', (i,), turn),
      ]
  return found


def _correction(config):
  turn, rule = names.transpose, names.Rule
  at, size = 'hidden_correction.', config.correction_width
  gate, up = slice(0, size), slice(size, 2 * size)
  leaf = 'token_head.gate_up'
  return [
    rule(at + 'hidden_norm.weight', 'token_head.hidden_norm'),
    rule(at + 'embed_norm.weight', 'token_head.embed_norm'),
    rule(at + 'gate_proj.weight', leaf, (names.ALL, gate), turn),
    rule(at + 'up_proj.weight', leaf, (names.ALL, up), turn),
    rule(at + 'down_proj.weight', 'token_head.down', (), turn),
  ]


def _markov(config):
  turn, rule = names.transpose, names.Rule
  found = [
    rule('markov_head.markov_w1.weight', 'token_head.markov_w1'),
    rule('markov_head.markov_w2.weight', 'token_head.markov_w2', (), turn),
  ]
  mixing = {'gated': 'gate_proj', 'rnn': 'joint_proj'}
  if config.markov_kind in mixing:
    at = f'markov_head.{mixing[config.markov_kind]}.'
    found += [
      rule(at + 'weight', 'token_head.mix', (), turn),
      rule(at + 'bias', 'token_head.mix_bias'),
    ]
  return found
