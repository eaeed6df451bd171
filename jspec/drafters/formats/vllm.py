# SPDX-License-Identifier: MIT
"""DFly and DFlare as vLLM serves them (AngelSlim's published checkpoints).

z-lab's tensor names; layers and mask token in `dflash_config` or
`dflare_config`. num_target_layers counts the captured layers for DFly (vLLM
checks that) and is the target's depth for DFlare. label_shift is 0 unless
`sample_from_anchor` says that the anchor's slot predicts too.
"""

from typing import Any

from jspec.drafters.formats import (
  copies,
  family,
  fields,
  served,
  shapes,
  vocabulary,
)

LABEL_SHIFT = 0
_ARCHITECTURES = {'dfly': 'Qwen3DFlyModel', 'dflare': 'QwenDFlareDraftModel'}


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra, nested=served.NESTED)
  if 'fc.weight' in tensors:
    served.count(left)
  else:
    served.depth(left)
  samples = left.pop('sample_from_anchor', None)
  fields.stated(left, 'dspark_bonus_anchor', not samples, 'sample_from_anchor')
  found, tensors = served.read(left, tensors, target, int(bool(samples)))
  served.check_method(found, _ARCHITECTURES)
  return found | carried, tensors


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  del target  # Nothing of it is copied.
  fields.only(config, 'model_type', *_ARCHITECTURES)
  fields.only(config, 'label_shift', LABEL_SHIFT)
  kind, ids = config['model_type'], config['target_layer_ids']
  keys = {
    'architectures': [_ARCHITECTURES[kind]],
    'num_target_layers': config['target_num_hidden_layers'],
    'dflash_config': {
      'mask_token_id': config['mask_token_id'],
      'target_layer_ids': ids,
    },
  }
  if kind == 'dfly':
    keys |= {
      'model_arch': 'dfly',
      'num_target_layers': len(ids),
      'target_num_hidden_layers': config['target_num_hidden_layers'],
      **{key: config[key] for key in family.CORRECTION},
    }
  tensors = vocabulary.with_offsets(config, tensors, keys)
  return served.write(config, tensors, **keys)
