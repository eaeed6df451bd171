# SPDX-License-Identifier: MIT
"""The native checkpoint of MTP, and AngelSpec's, whose tensor names it has.

enorm, hnorm, eh_proj, final_layernorm around `midlayer`; dense, or a mixture
whose experts are fused: experts_{gate,up}_proj [E, D, F], experts_down_proj [E,
F, D]. What routing does cannot be read off tensors and must be said. All
layouts join [embedding, state], feed back the normed state, and zero the
embedding fed at position 0.
"""

from typing import Any

from jspec import errors
from jspec.drafters.formats import fields, shapes, vocabulary, windows

_KINDS = ('gate', 'up', 'down')
EXPERTS = tuple(f'midlayer.mlp.experts_{kind}_proj' for kind in _KINDS)
_ROUTER = 'midlayer.mlp.router.gate.weight'
_BIAS = 'midlayer.mlp.expert_bias'
_SHARED = 'midlayer.mlp.shared_mlp.'
_POSTNORM = 'mtp_draft_input_postnorm'
# What the layouts here leave unsaid, because all of them do it.
CONVENTIONS = {
  'embedding_first': True,
  'feedback_postnorm': True,
  'zero_first_embedding': 'first_step',
}
_ROUTING = {
  'num_experts_per_tok': fields.integer,
  'moe_router_use_sigmoid': fields.flag,
  'route_norm': fields.flag,
  'router_scaling_factor': fields.number,
}
_NEEDED = (
  *('hidden_size', 'vocab_size', 'num_attention_heads', 'rms_norm_eps'),
  *('rope_theta', 'num_draft_tokens', 'target_num_hidden_layers', _POSTNORM),
  *('num_key_value_heads', 'head_dim'),
)
# Of the training.
_HARMLESS = (
  *('first_k_dense_replace', 'mtp_init_from_target_layer', 'tie_lm_head'),
  *('mtp_ce_loss_scaling_factor', 'mtp_kl_loss_scaling_factor'),
  *('mtp_kl_topk', 'mtp_kl_variant', 'mtp_ce_use_ground_truth'),
  *('mtp_single_step_loss', 'mtp_kl_tv_eta', 'mtp_e2e_weighting'),
  *('mtp_e2e_direct', 'mtp_e2e_tv_loss_scaling_factor', 'architectures'),
  *('model_type', '_mtp_spec_layer'),
)


def to_config(
  left: dict[str, Any],
  tensors: shapes.Tensors,
  called: dict[str, str] | None = None,
) -> dict[str, Any]:
  """Takes all there is in a config and checks it against the tensors.

  Args:
    left: what is left of the config, of one draft layer.
    tensors: under native names, without copies of the target.
    called: foreign names of the tensors, for messages.

  Raises:
    UserError: missing, unknown or contradicting, with both numbers.
  """
  fields.fixed(left, 'tie_lm_head', (True, None))
  for key in _HARMLESS:
    left.pop(key, None)
  fields.require(left, ('hidden_size', 'num_attention_heads', 'vocab_size'))
  fields.rope_theta(left)
  shapes.head_fields(left, tensors, 'midlayer.self_attn.')
  vocabulary.take(left, tensors)
  fields.require(left, _NEEDED)
  if windows.take(left, 1) is not None:
    raise errors.UserError('MTP with a sliding window is not supported')
  config = {'jspec_format': fields.FORMAT, 'model_type': 'mtp', **CONVENTIONS}
  for key in ('hidden_size', 'num_attention_heads', 'num_key_value_heads'):
    config[key] = fields.integer(left, key)
  for key in ('rms_norm_eps', 'rope_theta'):
    config[key] = fields.number(left, key)
  for key in ('head_dim', 'vocab_size', 'num_draft_tokens'):
    config[key] = fields.integer(left, key)
  config['draft_vocab_size'] = left.pop('draft_vocab_size')
  config[_POSTNORM] = fields.flag(left, _POSTNORM)
  depth = fields.integer(left, 'target_num_hidden_layers')
  if depth < 1:
    raise errors.UserError(f'the target has {depth} layers by the config')
  config['target_num_hidden_layers'] = depth
  config['target_layer_ids'] = [depth - 1]
  if left.get('target_hidden_size') is None:
    proj = tensors.get('hidden_proj.weight')
    width = config['hidden_size'] if proj is None else proj.shape[-1]
    left['target_hidden_size'] = width
  config['target_hidden_size'] = fields.integer(left, 'target_hidden_size')
  config['qk_norm'] = 'midlayer.self_attn.q_norm.weight' in tensors
  fields.stated(left, 'qk_norm', config['qk_norm'], 'the tensors')
  fields.stated(left, 'num_hidden_layers', 1, 'one MTP layer')
  fields.stated(left, 'num_nextn_predict_layers', 1, 'one MTP layer')
  config |= _mlp(left, tensors)
  for key, value in CONVENTIONS.items():
    fields.stated(left, key, value, 'this layout')
  fields.finish(left)
  shapes.check(table(config), tensors, called)
  return config


def _mlp(left, tensors):
  """Takes the keys of the dense MLP or of the mixture."""
  kind = 'moe' if _ROUTER in tensors else 'dense'
  fields.stated(left, 'mlp_type', kind, 'the tensors')
  found = {'num_experts': 0, 'intermediate_size': 0}
  if kind == 'dense':
    fields.require(left, ('intermediate_size',))
    found['intermediate_size'] = fields.integer(left, 'intermediate_size')
    for key in (*_ROUTING, 'moe_intermediate_size', 'expert_hidden_dim'):
      left.pop(key, None)  # Of the target's layers, not of this one.
    for key in ('num_experts', 'num_shared_experts'):
      left.pop(key, None)
    left.pop('moe_router_enable_expert_bias', None)
    return found
  # Of the target's dense layers: kept, never used.
  found['intermediate_size'] = left.pop('intermediate_size', None) or 0
  fields.require(left, _ROUTING)
  for key, take in _ROUTING.items():
    found[key] = take(left, key)
  if EXPERTS[0] not in tensors:
    raise errors.UserError(f'a router without the experts ({EXPERTS[0]})')
  found['num_experts'] = tensors[_ROUTER].shape[0]
  found['moe_intermediate_size'] = width = tensors[EXPERTS[0]].shape[-1]
  up = tensors.get(_SHARED + 'up_proj.weight')
  found['num_shared_experts'] = 0 if up is None else up.shape[0] // width
  found['moe_router_enable_expert_bias'] = _BIAS in tensors
  fields.stated(left, 'expert_hidden_dim', width, 'the tensors')
  for key in found.keys() - _ROUTING.keys() - {'intermediate_size'}:
    fields.stated(left, key, found[key], 'the tensors')
  return found


def table(config: dict[str, Any]) -> shapes.Table:
  """The tensors of a native config."""
  width, target = (
    shapes.axis(config, key) for key in ('hidden_size', 'target_hidden_size')
  )
  found = {
    f'{name}.weight': (width,) for name in ('enorm', 'hnorm', 'final_layernorm')
  }
  found['eh_proj.weight'] = (width, ('2*hidden_size', 2 * width[1]))
  if width[1] != target[1]:
    found['hidden_proj.weight'] = (width, target)
  is_dense = not config['num_experts']
  found |= shapes.decoder_layer(
    config, 'midlayer.', has_qk_norm=config['qk_norm'], has_mlp=is_dense
  )
  if config['draft_vocab_size'] is not None:
    found[vocabulary.NATIVE] = (shapes.axis(config, 'draft_vocab_size'),)
  if is_dense:
    return found
  experts = shapes.axis(config, 'num_experts')
  inner = shapes.axis(config, 'moe_intermediate_size')
  found[_ROUTER] = (experts, width)
  gate, up, down = EXPERTS
  found |= {gate: (experts, width, inner), up: (experts, width, inner)}
  found[down] = (experts, inner, width)
  if config['moe_router_enable_expert_bias']:
    found[_BIAS] = (experts,)
  if config['num_shared_experts']:
    keys = ('num_shared_experts', 'moe_intermediate_size')
    found |= shapes.mlp(_SHARED, width, shapes.axis(config, *keys))
  return found


def foreign_config(config: dict[str, Any]) -> dict[str, Any]:
  """AngelSpec's draft config of a native one.

  Raises:
    UserError: a convention that AngelSpec does not have.
  """
  check_conventions(config)
  fields.only(config, 'draft_vocab_size', None)
  experts = {}
  if config['num_experts']:
    keys = (*_ROUTING, 'num_experts', 'num_shared_experts')
    keys += ('moe_intermediate_size', 'moe_router_enable_expert_bias')
    experts = {key: config[key] for key in keys}
  return {
    'architectures': ['MTPDraftModel'],
    'model_type': 'mtp',
    'mlp_type': 'moe' if experts else 'dense',
    'qk_norm': config['qk_norm'],
    'hidden_act': 'silu',
    'tie_lm_head': True,
    'target_hidden_size': config['target_hidden_size'],
    'target_num_hidden_layers': config['target_num_hidden_layers'],
    _POSTNORM: config[_POSTNORM],
    **experts,
    **fields.shared(config),
  }


def check_conventions(config: dict[str, Any]) -> None:
  """Refuses what no layout here can say.

  Raises:
    UserError: naming it.
  """
  fields.only(config, 'embedding_first', True)
  fields.only(config, 'feedback_postnorm', True)
  # Zeroed at later simulated steps or not, decoding does the same.
  fields.only(config, 'zero_first_embedding', 'first_step', 'every_step')
