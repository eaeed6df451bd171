# SPDX-License-Identifier: MIT
"""AngelSpec's own checkpoints, as its trainer names them.

The DFlash family (DFlash, DFlare, DFly, DSpark, gated probe): the native tensor
names, with a frozen copy of the embedding; num_target_layers counts the
captured layers; block_size is not in the config. Slot k predicts the token at
anchor + k: label_shift 0. MTP: see `mtp`.
"""

from typing import Any

from jspec import errors
from jspec.drafters.formats import (
  copies,
  family,
  fields,
  mtp,
  served,
  shapes,
  vocabulary,
)

LABEL_SHIFT = 0
_TIED = 'lm_head_weight'
_ARCHITECTURES = {'dfly': 'Qwen3DFlyModel', 'dspark': 'DSparkDraftModel'}
_MODEL_TYPES = {'dfly': 'qwen3', 'dspark': 'dspark'}


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra)
  tensors = dict(tensors)
  # Its MTP trainer also keeps the head, under a name without a dot.
  copied = copies.take(tensors, (copies.EMBEDDING, copies.HEAD, _TIED))
  if 'eh_proj.weight' in tensors:
    found = mtp.to_config(left, tensors)
  else:
    served.count(left)
    found = family.to_config(left, tensors, LABEL_SHIFT)
    if found['model_type'] == 'dflash2':
      raise errors.UserError('these tensors are of DFlash2; try --layout zlab')
  copies.check(
    copied,
    target,
    vocab_size=found['vocab_size'],
    width=found['hidden_size'],
    ids=tensors.get('draft_token_ids'),
  )
  return found | carried, tensors


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  fields.only(config, 'model_type', 'dflash', 'dflare', 'dfly', 'dspark', 'mtp')
  tensors = dict(tensors)
  kind = config['model_type']
  if kind == 'mtp':
    out = mtp.foreign_config(config)
    copies.add(tensors, target, (copies.EMBEDDING,))
    return out, tensors
  fields.only(config, 'label_shift', LABEL_SHIFT)
  fields.only(config, 'layer_windows', None)
  fields.only(config, 'markov_head_type', 'vanilla')
  ids = config['target_layer_ids']
  out = {
    'architectures': [_ARCHITECTURES.get(kind, 'DFlashDraftModel')],
    'model_type': _MODEL_TYPES.get(kind, 'dflash'),
    'num_target_layers': len(ids),
    'target_layer_ids': ids,
    'target_hidden_size': config['target_hidden_size'],
    'target_num_hidden_layers': config['target_num_hidden_layers'],
    'mask_token_id': config['mask_token_id'],
    'draft_vocab_size': config['vocab_size'],
    **fields.shared(config),
  }
  if config['fusion'] == 'gated':
    out['fusion_type'] = 'gated_sum'
    out['gate_temperature'] = config['gate_temperature']
  if kind == 'dflare':
    out['model_arch'] = 'dflare'
  parts = {'dfly': family.CORRECTION, 'dspark': family.HEADS}.get(kind, ())
  out |= {key: config[key] for key in parts}
  tensors = vocabulary.with_offsets(config, tensors, out)
  copies.add(tensors, target, (copies.EMBEDDING,))
  return out, tensors
