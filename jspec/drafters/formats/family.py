# SPDX-License-Identifier: MIT
"""The native checkpoint of the DFlash family, and what its layouts share.

Native tensor names are AngelSpec's; which parts a checkpoint has is read off
its tensors, and a config that says otherwise is refused:

  dflash    context_proj                        concat
            candidate_norms, layer_gate         gated
  dflash2   selector, attn_conv, mlp_conv       concat
  dflare    layer_fusion_weights, k_proj_target layer_mix
  dfly      both of context_proj and            concat_layer_mix
            layer_fusion_weights, hidden_correction
  dspark    markov_head, confidence_head        concat
"""

from typing import Any

from jspec import errors
from jspec.drafters.formats import (
  family_table,
  fields,
  shapes,
  vocabulary,
  windows,
)

METHODS = ('dflash', 'dflash2', 'dflare', 'dfly', 'dspark')
FUSIONS = {'dflare': 'layer_mix', 'dfly': 'concat_layer_mix'}
# Keys of the parts, as they are where there is none.
OFF = {
  'fusion': 'concat',
  'gate_temperature': 1.0,
  'markov_rank': 0,
  'markov_head_type': 'vanilla',
  'enable_confidence_head': False,
  'confidence_head_with_markov': False,
  'enable_hidden_correction': False,
  'hidden_correction_intermediate_size': 0,
  'selector_rank': 0,
  'selector_size': 0,
  'conv_group_size': 0,
}
CORRECTION = (
  'enable_hidden_correction',
  'hidden_correction_intermediate_size',
)
HEADS = (
  *('markov_rank', 'markov_head_type', 'enable_confidence_head'),
  'confidence_head_with_markov',
)
# Those that a native config of the method says.
PARTS = {
  'dflash': ('fusion', 'gate_temperature'),
  'dflash2': ('selector_rank', 'selector_size', 'conv_group_size'),
  'dflare': (),
  'dfly': CORRECTION,
  'dspark': HEADS,
}

# Architectures that stand for one method.
_KNOWN = {
  'DFlareQwen3Model': 'dflare',
  'DFlash2DraftModel': 'dflash2',
  'DSparkDraftModel': 'dspark',
  'Qwen3DFlyModel': 'dfly',
  'QwenDFlareDraftModel': 'dflare',
}
_CONFIDENCE = 'confidence_head.proj.weight'
_PARTS = {
  'hidden_correction.': 'dfly',
  'markov_head.': 'dspark',
  'confidence_head.': 'dspark',
  'selector.': 'dflash2',
  'attn_conv.': 'dflash2',
}
_NEEDED = (
  *('hidden_size', 'intermediate_size', 'num_hidden_layers', 'vocab_size'),
  *('num_attention_heads', 'rms_norm_eps', 'rope_theta', 'mask_token_id'),
  *('block_size', 'target_layer_ids', 'target_num_hidden_layers'),
  *('num_key_value_heads', 'head_dim'),
)
# Keys that would change the computation, with what is computed here.
_FIXED = {
  'causal': (False, None),
  'is_causal': (False, None),
  'attention_mode': ('gqa', None),
  'conv_kernel_size': (2, None),
  'final_logit_softcapping': (None,),
  'hidden_correction_type': ('swiglu', None),
  'linear_position_ids': (True, None),
  'output_multiplier': (1.0, None),
  'use_aux_hidden_state': (False, True, None),
}


def method(tensors: shapes.Tensors) -> str:
  """Which drafter these native tensors make.

  Raises:
    UserError: parts that no drafter here combines.
  """
  has_mix = family_table.MIX in tensors
  base = 'dflash'
  if has_mix:
    base = 'dfly' if family_table.PROJ in tensors else 'dflare'
  wanted = {m for part, m in _PARTS.items() if any(part in n for n in tensors)}
  found = wanted | ({base} if has_mix else set())
  if len(found) > 1 or ('layer_gate' in tensors and found):
    parts = [p.strip('.') for p in _PARTS if any(p in n for n in tensors)]
    parts += [n for n in (family_table.MIX, 'layer_gate') if n in tensors]
    raise errors.UserError(
      f'no drafter here combines {" and ".join(parts)}; is it a research'
      ' variant?'
    )
  return found.pop() if found else base


def to_config(
  left: dict[str, Any],
  tensors: shapes.Tensors,
  label_shift: int,
  called: dict[str, str] | None = None,
) -> dict[str, Any]:
  """Takes all there is in a flat config and checks it against the tensors.

  Args:
    left: what is left of the config, with num_target_layers taken by the
      layout, whose meaning of it differs.
    tensors: under native names, without copies.
    label_shift: of the layout.
    called: foreign names of the tensors, for messages.

  Returns:
    The native config.

  Raises:
    UserError: missing, unknown or contradicting, with both numbers.
  """
  kind = method(tensors)
  _check_names(left, kind)
  fields.require(left, ('hidden_size', 'num_attention_heads'))
  fields.rope_theta(left)
  shapes.head_fields(left, tensors, 'layers.0.self_attn.')
  fields.require(left, _NEEDED)
  vocabulary.take(left, tensors)
  fields.stated(left, 'label_shift', label_shift, 'this layout')
  config = {'jspec_format': fields.FORMAT, 'model_type': kind}
  for key in ('hidden_size', 'intermediate_size', 'num_hidden_layers'):
    config[key] = fields.integer(left, key)
  for key in ('num_attention_heads', 'num_key_value_heads', 'head_dim'):
    config[key] = fields.integer(left, key)
  for key in ('rms_norm_eps', 'rope_theta'):
    config[key] = fields.number(left, key)
  for key in ('vocab_size', 'mask_token_id', 'block_size'):
    config[key] = fields.integer(left, key)
  config['draft_vocab_size'] = left.pop('draft_vocab_size')
  config['label_shift'] = label_shift
  config['num_draft_tokens'] = _num_drafts(left, config)
  depth = fields.integer(left, 'target_num_hidden_layers')
  config['target_num_hidden_layers'] = depth
  config['target_layer_ids'] = fields.layer_ids(left, depth)
  config['target_hidden_size'] = _target_width(left, config, tensors)
  config['layer_windows'] = windows.take(left, config['num_hidden_layers'])
  if config['mask_token_id'] >= config['vocab_size']:
    raise errors.UserError(
      f'mask_token_id is {config["mask_token_id"]}, vocab_size'
      f' {config["vocab_size"]}; one of them is of another checkpoint'
    )
  config |= _parts(left, config, tensors)
  for key, allowed in _FIXED.items():
    fields.fixed(left, key, allowed)
  fields.finish(left)
  shapes.check(family_table.table(config), tensors, called)
  others = OFF.keys() - set(PARTS[kind])
  return {key: value for key, value in config.items() if key not in others}


def complete(config: dict[str, Any]) -> dict[str, Any]:
  """A native config with the keys of the parts that it does not have."""
  fusion = FUSIONS.get(config['model_type'], 'concat')
  return OFF | {'fusion': fusion, 'layer_windows': None} | config


def _check_names(left, kind):
  """Refuses an architecture of another method; some names stand for several."""
  left.pop('model_type', None)
  known = {_KNOWN.get(name) for name in left.pop('architectures', None) or ()}
  stated = left.pop('model_arch', None)
  # 'dflash' is what AngelSpec writes where nothing else is said.
  others = (known | {stated}) - {None, 'dflash', kind}
  if others:
    raise errors.UserError(
      f'the config is of {" and ".join(sorted(others))}, the tensors are of'
      f' {kind}; one of them is of another checkpoint'
    )


def _num_drafts(left, config):
  most = config['block_size'] - 1 + config['label_shift']
  if left.get('num_draft_tokens') is None:
    left['num_draft_tokens'] = most
  count = fields.integer(left, 'num_draft_tokens')
  if not 1 <= count <= most:
    raise errors.UserError(
      f'num_draft_tokens is {count}, block_size {config["block_size"]} with'
      f' label_shift {config["label_shift"]} gives 1..{most}'
    )
  return count


def _target_width(left, config, tensors):
  """The width of the taps: as stated, else as wide as the tensors."""
  if left.get('target_hidden_size') is not None:
    return fields.integer(left, 'target_hidden_size')
  left.pop('target_hidden_size', None)
  if family_table.PROJ not in tensors:
    return config['hidden_size']
  columns, count = (
    tensors[family_table.PROJ].shape[-1],
    len(config['target_layer_ids']),
  )
  if columns % count:
    raise errors.UserError(
      f'the context projection has {columns} columns, target_layer_ids are'
      f' {count}; one of them is of another checkpoint'
    )
  return columns // count


def _parts(left, config, tensors):
  """Takes the keys that say which parts there are."""
  kind, width = config['model_type'], config['hidden_size']
  is_gated = 'layer_gate' in tensors
  where = 'the tensors'
  found = OFF | {
    'fusion': 'gated' if is_gated else FUSIONS.get(kind, 'concat'),
    'enable_confidence_head': _CONFIDENCE in tensors,
    'enable_hidden_correction': 'hidden_correction.down_proj.weight' in tensors,
  }
  names = {'gated': 'gated_sum'}
  fields.stated(
    left, 'fusion_type', names.get(found['fusion'], 'concat_fc'), where
  )
  if is_gated:
    fields.require(left, ('gate_temperature',))
    found['gate_temperature'] = fields.number(left, 'gate_temperature')
  else:
    left.pop('gate_temperature', None)  # Of a gate that is not there.
  if 'markov_head.markov_w1.weight' in tensors:
    found['markov_rank'] = tensors['markov_head.markov_w1.weight'].shape[-1]
    for kind_of_head, part in ('gated', 'gate_proj'), ('rnn', 'joint_proj'):
      if f'markov_head.{part}.weight' in tensors:
        found['markov_head_type'] = kind_of_head
  else:
    left.pop('markov_head_type', None)  # Of a head that is not there.
  if found['enable_confidence_head']:
    key, seen = 'confidence_head_with_markov', tensors[_CONFIDENCE].shape[-1]
    with_token = {width + found['markov_rank']: True, width: False}
    # Of any other width it is wrong; `shapes.check` says by how much.
    found[key] = with_token.get(seen, bool(left.get(key)))
  else:
    left.pop('confidence_head_with_markov', None)
  if found['enable_hidden_correction']:
    size = tensors['hidden_correction.down_proj.weight'].shape[-1]
    key = 'hidden_correction_intermediate_size'
    found[key] = size
    if key in left and left[key] is None:
      left[key] = width  # What AngelSpec means by null.
  else:
    left.pop('hidden_correction_intermediate_size', None)
  for key in HEADS + CORRECTION:
    fields.stated(left, key, found[key], where)
  if kind == 'dflash2':
    found |= _dflash2_parts(left, config, tensors)
  return found


def _dflash2_parts(left, config, tensors):
  found = {}
  if 'selector.proj.weight' in tensors:
    # Ours and z-lab's word for the candidates of a slot.
    if 'selector_top_k' in left:
      fields.same(left, 'selector_size', left.pop('selector_top_k'), 'z-lab')
    fields.require(left, ('selector_size',))
    found['selector_size'] = fields.integer(left, 'selector_size')
    found['selector_rank'] = tensors['selector.proj.weight'].shape[0]
  proj = tensors.get('layers.0.attn_conv.proj.weight')
  if proj is not None:
    groups = max(proj.shape[0] // family_table.SIDES_AND_TAPS, 1)
    found['conv_group_size'] = config['hidden_size'] // groups
  for key in ('selector_rank', 'conv_group_size'):
    fields.stated(left, key, found.get(key, 0), 'the tensors')
  return found
