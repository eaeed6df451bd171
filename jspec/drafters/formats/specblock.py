# SPDX-License-Identifier: MIT
"""SpecBlock's published checkpoints (arXiv 2605.07243).

The native tensor names are theirs; a copy of the embedding lies in the input
layer, d2t holds offsets. The config says neither the captured layers (outputs
of 1, L/2 - 1 and L - 4 in their training) nor the target's depth, and often no
rotary base: all must be given. Slot k predicts k + 1 tokens behind the one fed.
"""

from typing import Any

from jspec.drafters.formats import copies, fields, shapes, vocabulary

LABEL_SHIFT = 1
_EMBEDDING = 'input_layer.embed_tokens.weight'
_SLOTS = 'diffspec_draft_token_num'
_NEEDED = (
  *('hidden_size', 'intermediate_size', 'num_hidden_layers', 'vocab_size'),
  *('num_attention_heads', 'rms_norm_eps', 'rope_theta', 'block_size'),
  *('target_layer_ids', 'target_num_hidden_layers'),
  *('num_key_value_heads', 'head_dim'),
)
_INPUTS = ('condition_norm', 'token_norm', 'query_norm')
# Of the rank head: its hidden width, its features beside the state, classes.
_RANK_WIDTH, _RANK_FEATURES, _RANK_CLASSES = 256, 15, 4


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra)
  tensors = dict(tensors)
  for key in [k for k in left if k.startswith('_comment')]:
    del left[key]
  for key in ('architectures', 'model_type'):
    left.pop(key, None)
  copied = copies.take(tensors, (_EMBEDDING,))
  fields.require(left, ('hidden_size', 'num_attention_heads', 'vocab_size'))
  fields.rope_theta(left)
  shapes.head_fields(left, tensors, 'layers.0.self_attn.')
  if copies.HEAD in tensors:  # Else `shapes.check` says so.
    vocabulary.take(left, tensors, (copies.HEAD,))
  found = _config(left, tensors)
  copies.check(
    copied,
    target,
    vocab_size=found['vocab_size'],
    width=found['hidden_size'],
  )
  return found | carried, tensors


def _config(left, tensors):
  if _SLOTS in left:
    fields.same(left, 'block_size', left.pop(_SLOTS), _SLOTS)
  fields.require(left, _NEEDED)
  fields.stated(left, 'label_shift', LABEL_SHIFT, 'this layout')
  fields.fixed(left, 'rank_classes', (_RANK_CLASSES, None))
  config = {'jspec_format': fields.FORMAT, 'model_type': 'specblock'}
  for key in ('hidden_size', 'intermediate_size', 'num_hidden_layers'):
    config[key] = fields.integer(left, key)
  for key in ('num_attention_heads', 'num_key_value_heads', 'head_dim'):
    config[key] = fields.integer(left, key)
  for key in ('rms_norm_eps', 'rope_theta'):
    config[key] = fields.number(left, key)
  for key in ('vocab_size', 'block_size', 'target_num_hidden_layers'):
    config[key] = fields.integer(left, key)
  config['draft_vocab_size'] = left.pop('draft_vocab_size', None)
  config['label_shift'] = LABEL_SHIFT
  if left.get('num_draft_tokens') is None:
    left['num_draft_tokens'] = config['block_size']
  config['num_draft_tokens'] = fields.integer(left, 'num_draft_tokens')
  depth = config['target_num_hidden_layers']
  config['target_layer_ids'] = fields.layer_ids(left, depth)
  if left.get('target_hidden_size') is None:
    left['target_hidden_size'] = config['hidden_size']
  config['target_hidden_size'] = fields.integer(left, 'target_hidden_size')
  fields.finish(left)
  shapes.check(table(config), tensors)
  return config


def table(config: dict[str, Any]) -> shapes.Table:
  """The tensors of a native config."""
  width = shapes.axis(config, 'hidden_size')
  target = shapes.axis(config, 'target_hidden_size')
  count, three = len(config['target_layer_ids']), 3 * width[1]
  taps = (f'{count} target_layer_ids*target_hidden_size', count * target[1])
  size = vocabulary.size_key(config)
  at = 'input_layer.'
  found = {
    at + 'condition_proj.weight': (width, taps),
    at + 'position_queries.weight': (shapes.axis(config, 'block_size'), width),
    at + 'fuse.weight': (width, ('3*hidden_size', three)),
    'norm.weight': (width,),
    copies.HEAD: (shapes.axis(config, size), width),
    'rank_head.0.weight': (
      ('rank width', _RANK_WIDTH),
      (f'hidden_size+{_RANK_FEATURES}', width[1] + _RANK_FEATURES),
    ),
    'rank_head.2.weight': (
      ('rank_classes', _RANK_CLASSES),
      ('rank width', _RANK_WIDTH),
    ),
  }
  found |= {f'{at}{name}.weight': (width,) for name in _INPUTS}
  for i in range(config['num_hidden_layers']):
    found |= shapes.decoder_layer(config, f'layers.{i}.', has_qk_norm=False)
    if i > 0:
      found[f'shift_proj.{i - 1}.weight'] = (
        width,
        ('2*hidden_size', 2 * width[1]),
      )
  if config['draft_vocab_size'] is not None:
    found[vocabulary.NATIVE] = (shapes.axis(config, size),)
  return found


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  fields.only(config, 'model_type', 'specblock')
  out = {
    'architectures': ['LlamaForCausalLMSpecBlock'],
    'model_type': 'llama',
    'hidden_act': 'silu',
    'rope_scaling': None,
    'draft_vocab_size': config['vocab_size'],
    _SLOTS: config['block_size'],
    'rank_classes': _RANK_CLASSES,
    'target_layer_ids': config['target_layer_ids'],
    'target_hidden_size': config['target_hidden_size'],
    'target_num_hidden_layers': config['target_num_hidden_layers'],
    **fields.shared(config),
  }
  found = vocabulary.with_offsets(config, dict(tensors), out)
  if config['draft_vocab_size'] is not None:
    found['t2d'] = vocabulary.marks_of(found['d2t'], config['vocab_size'])
  copies.add(found, target, (_EMBEDDING,))
  return out, found
