# SPDX-License-Identifier: MIT
"""DeepSpec's DSpark and DFlash (deepseek-ai, arXiv 2607.05147).

z-lab's tensor names, with copies of the target's embedding and head; the config
is the target's with the drafter's fields at the top, and num_target_layers is
the target's depth. Slot k predicts the token at anchor + k + 1: label_shift 1.
Their DFlash is DSpark without Markov and confidence heads. A reduced vocabulary
is vLLM's addition: d2t, and a head with those rows.
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

LABEL_SHIFT = 1
_METHODS = ('dspark', 'dflash')


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra, nested=served.NESTED)
  served.depth(left)
  fields.fixed(left, 'sample_from_anchor', (True, None))
  fields.fixed(left, 'dspark_bonus_anchor', (False, None))
  found, tensors = served.read(left, tensors, target, LABEL_SHIFT)
  served.check_method(found, _METHODS)
  return found | carried, tensors


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  fields.only(config, 'model_type', *_METHODS)
  fields.only(config, 'fusion', 'concat')
  fields.only(config, 'label_shift', LABEL_SHIFT)
  if config['markov_rank']:  # Whose matrices servers cut to it, and we do not.
    fields.only(config, 'draft_vocab_size', None)
  keys = {key: config[key] for key in family.HEADS}
  ids = tensors.get(vocabulary.NATIVE)
  tensors = vocabulary.with_offsets(config, tensors, keys)
  out, tensors = served.write(
    config,
    tensors,
    architectures=['Qwen3DSparkModel'],
    num_target_layers=config['target_num_hidden_layers'],
    mask_token_id=config['mask_token_id'],
    target_layer_ids=config['target_layer_ids'],
    **keys,
  )
  copies.add(tensors, target, (copies.EMBEDDING, copies.HEAD), ids)
  return out, tensors
