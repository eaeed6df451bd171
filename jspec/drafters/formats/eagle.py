# SPDX-License-Identifier: MIT
"""EAGLE-3 heads with SafeAILab's names (arXiv 2503.01840), also AngelSpec's.

One layer `midlayer` on two hidden vectors, a head of its own, a frozen copy of
the embedding; a reduced vocabulary has d2t (offsets) and t2d. The captured
layers are usually not in the config, and no rule of thumb is safe: they must be
given. Two keys carry them and count differently:

  eagle_config.eagle_aux_hidden_state_layer_ids   outputs of layers (SGLang)
  eagle_aux_hidden_state_layer_ids                one more, 0 is the embedding
                                                  (vLLM)
"""

from typing import Any

from jspec import errors
from jspec.drafters.formats import copies, fields, shapes, vocabulary, windows

_IDS = 'eagle_aux_hidden_state_layer_ids'
_NEEDED = (
  *('hidden_size', 'intermediate_size', 'num_hidden_layers', 'vocab_size'),
  *('num_attention_heads', 'rms_norm_eps', 'rope_theta', 'num_draft_tokens'),
  *('target_layer_ids', 'target_num_hidden_layers'),
  *('num_key_value_heads', 'head_dim'),
)
# Change the computation; the first value is what is computed here.
_FIXED = {
  'norm_before_fc': (False, None),
  'norm_before_residual': (False, None),
  'use_aux_hidden_state': (True, None),
}


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  return read(config, tensors, extra, target, {})


def read(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None,
  called: dict[str, str],
) -> tuple[dict[str, Any], shapes.Tensors]:
  """As `to_native`, for tensors that were `called` otherwise."""
  config, tensors = dict(config), dict(tensors)
  inner = config.pop('eagle_config', None) or {}
  if not isinstance(inner, dict):
    raise errors.UserError(f'eagle_config={inner!r}: expected an object')
  inner = dict(inner)
  ids, shifted = inner.pop(_IDS, None), config.pop(_IDS, None)
  left, carried = fields.begin(config | inner, extra)
  if ids is not None:
    fields.same(left, 'target_layer_ids', ids, f'eagle_config.{_IDS}')
  if shifted is not None:
    down = [i - 1 for i in shifted]
    fields.same(left, 'target_layer_ids', down, f'{_IDS} (less 1)')
  for key in ('architectures', 'model_type'):
    left.pop(key, None)
  copied = copies.take(tensors, (copies.EMBEDDING,))
  found = _config(left, tensors, called)
  copies.check(
    copied,
    target,
    vocab_size=found['vocab_size'],
    width=found['hidden_size'],
  )
  return found | carried, tensors


def _config(left, tensors, called):
  fields.require(left, ('hidden_size', 'num_attention_heads', 'vocab_size'))
  fields.rope_theta(left)
  shapes.head_fields(left, tensors, 'midlayer.self_attn.')
  if copies.HEAD not in tensors:
    raise errors.UserError(
      f'no tensor {copies.HEAD}: EAGLE-3 heads have one of their own'
    )
  vocabulary.take(left, tensors, (copies.HEAD,))
  fields.require(left, _NEEDED)
  config = {'jspec_format': fields.FORMAT, 'model_type': 'eagle3'}
  for key in ('hidden_size', 'intermediate_size', 'num_hidden_layers'):
    config[key] = fields.integer(left, key)
  for key in ('num_attention_heads', 'num_key_value_heads', 'head_dim'):
    config[key] = fields.integer(left, key)
  for key in ('rms_norm_eps', 'rope_theta'):
    config[key] = fields.number(left, key)
  for key in ('vocab_size', 'num_draft_tokens', 'target_num_hidden_layers'):
    config[key] = fields.integer(left, key)
  config['draft_vocab_size'] = left.pop('draft_vocab_size')
  depth = config['target_num_hidden_layers']
  config['target_layer_ids'] = fields.layer_ids(left, depth)
  count = len(config['target_layer_ids'])
  fields.stated(left, 'num_aux_hidden_states', count, 'target_layer_ids')
  if left.get('target_hidden_size') is None:
    fusion = tensors.get('fc.weight')  # `shapes.check` says if it is not there.
    columns = 0 if fusion is None else fusion.shape[-1]
    left['target_hidden_size'] = columns // count
  config['target_hidden_size'] = fields.integer(left, 'target_hidden_size')
  if left.get('norm_output') is None:
    left['norm_output'] = False  # What every head without the key does.
  config['norm_output'] = fields.flag(left, 'norm_output')
  config['fc_norm'] = 'fc_norm.0.weight' in tensors
  fields.stated(left, 'fc_norm', config['fc_norm'], 'the tensors')
  if windows.take(left, 1) is not None:
    raise errors.UserError('EAGLE-3 with a sliding window is not supported')
  if config['num_hidden_layers'] != 1:
    raise errors.UserError(
      f'num_hidden_layers is {config["num_hidden_layers"]}, EAGLE-3 has 1'
    )
  for key, allowed in _FIXED.items():
    fields.fixed(left, key, allowed)
  fields.finish(left)
  shapes.check(table(config), tensors, called)
  return config


def table(config: dict[str, Any]) -> shapes.Table:
  """The tensors of a native config."""
  width, target = (
    shapes.axis(config, key) for key in ('hidden_size', 'target_hidden_size')
  )
  count = len(config['target_layer_ids'])
  taps = (f'{count} target_layer_ids*target_hidden_size', count * target[1])
  size = vocabulary.size_key(config)
  found = {
    'fc.weight': (width, taps),
    'midlayer.hidden_norm.weight': (width,),
    'norm.weight': (width,),
    copies.HEAD: (shapes.axis(config, size), width),
  }
  found |= shapes.decoder_layer(
    config, 'midlayer.', has_qk_norm=False, inputs=2
  )
  if config['fc_norm']:
    found |= {f'fc_norm.{i}.weight': (target,) for i in range(count)}
  if config['draft_vocab_size'] is not None:
    found[vocabulary.NATIVE] = (shapes.axis(config, size),)
  return found


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  out, tensors = write(config, tensors)
  copies.add(tensors, target, (copies.EMBEDDING,))
  return out, tensors


def write(
  config: dict[str, Any], tensors: shapes.Tensors
) -> tuple[dict[str, Any], shapes.Tensors]:
  """As `from_native`, without the embedding."""
  fields.only(config, 'model_type', 'eagle3')
  out = {
    'architectures': ['LlamaForCausalLMEagle3'],
    'model_type': 'llama',
    'hidden_act': 'silu',
    'attention_bias': False,
    'rope_scaling': None,
    'draft_vocab_size': config['vocab_size'],
    'target_hidden_size': config['target_hidden_size'],
    'target_num_hidden_layers': config['target_num_hidden_layers'],
    'eagle_config': {_IDS: config['target_layer_ids']},
    **fields.shared(config),
  }
  out |= {key: True for key in ('norm_output', 'fc_norm') if config[key]}
  tensors = vocabulary.with_offsets(config, dict(tensors), out)
  if config['draft_vocab_size'] is not None:
    ids = config['vocab_size']
    tensors['t2d'] = vocabulary.marks_of(tensors['d2t'], ids)
  return out, tensors
