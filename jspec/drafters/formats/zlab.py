# SPDX-License-Identifier: MIT
"""z-lab's DFlash and DFlash2 (arXiv 2602.06036).

block_size at the top or nested; mask token and layers nested in
`dflash_config`; num_target_layers is the target's depth. Slot k predicts the
token at anchor + k: label_shift 0.
"""

from typing import Any

from jspec.drafters.formats import copies, fields, served, shapes

LABEL_SHIFT = 0
_ARCHITECTURES = {'dflash': 'DFlashDraftModel', 'dflash2': 'DFlash2DraftModel'}


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra, nested=served.NESTED)
  served.depth(left)
  found, tensors = served.read(left, tensors, target, LABEL_SHIFT)
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
  fields.only(config, 'fusion', 'concat')
  fields.only(config, 'label_shift', LABEL_SHIFT)
  fields.only(config, 'draft_vocab_size', None)
  inner = {}
  if config['selector_rank']:
    inner['selector_rank'] = config['selector_rank']
    inner['selector_top_k'] = config['selector_size']
  if config['conv_group_size']:
    inner['conv_group_size'] = config['conv_group_size']
    inner['conv_kernel_size'] = 2
  return served.write(
    config,
    tensors,
    architectures=[_ARCHITECTURES[config['model_type']]],
    num_target_layers=config['target_num_hidden_layers'],
    dflash_config={
      'mask_token_id': config['mask_token_id'],
      'target_layer_ids': config['target_layer_ids'],
      **inner,
    },
  )
