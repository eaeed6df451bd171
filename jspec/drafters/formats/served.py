# SPDX-License-Identifier: MIT
"""The names z-lab gave DFlash, which vLLM and DeepSpec took over.

Tensors around the layers have names of their own; mask token and target layers
may be nested. num_target_layers is the target's depth here and the number of
captured layers there: the layout decides.
"""

from collections.abc import Collection
from typing import Any

from jspec import errors
from jspec.drafters.formats import (
  copies,
  family,
  fields,
  names,
  shapes,
  windows,
)

PAIRS = (
  ('fc.weight', 'context_proj.weight'),
  ('hidden_norm.weight', 'context_norm.weight'),
  ('norm.weight', 'final_norm.weight'),
  ('candidate_selector.hidden_projection.weight', 'selector.proj.weight'),
  ('candidate_selector.predecessor_codebook', 'selector.prev_embed.weight'),
  ('candidate_selector.successor_codebook', 'selector.next_embed.weight'),
  ('attention_conv.base_kernel', 'attn_conv.base'),
  ('attention_conv.kernel_projection.weight', 'attn_conv.proj.weight'),
  ('mlp_conv.base_kernel', 'mlp_conv.base'),
  ('mlp_conv.kernel_projection.weight', 'mlp_conv.proj.weight'),
)
NESTED = ('dflash_config', 'dflare_config')


def depth(left: dict[str, Any]) -> None:
  """Takes num_target_layers as the target's depth."""
  stated = left.pop('num_target_layers', None)
  if stated is not None:
    fields.same(left, 'target_num_hidden_layers', stated, 'num_target_layers')


def count(left: dict[str, Any]) -> None:
  """Takes num_target_layers as the number of target_layer_ids."""
  if left.get('target_layer_ids') is None:
    left.pop('num_target_layers', None)  # Without ids it says too little.
  else:
    size = len(left['target_layer_ids'])
    fields.stated(left, 'num_target_layers', size, 'target_layer_ids')


def read(
  left: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None,
  label_shift: int,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Native config and tensors; copies of the target are checked and dropped.

  Raises:
    UserError: as `family.to_config` and `copies.check`.
  """
  called = names.called(tensors, PAIRS)
  found = names.renamed(tensors, PAIRS)
  copied = copies.take(found)
  config = family.to_config(left, found, label_shift, called)
  copies.check(
    copied,
    target,
    vocab_size=config['vocab_size'],
    width=config['hidden_size'],
    ids=found.get('draft_token_ids'),
  )
  return config, found


def check_method(found: dict[str, Any], methods: Collection[str]) -> None:
  """Refuses the tensors of a drafter that the layout does not have.

  Raises:
    UserError: naming it.
  """
  is_gated = found.get('fusion') == 'gated'
  if found['model_type'] not in methods or is_gated:
    kind = 'the gated probe' if is_gated else found['model_type']
    raise errors.UserError(
      f'the tensors are of {kind}, but this layout has {" and ".join(methods)};'
      ' give another --layout'
    )


def write(
  config: dict[str, Any], tensors: shapes.Tensors, **keys
) -> tuple[dict[str, Any], shapes.Tensors]:
  """A Qwen3-like config with `keys`, and the tensors under these names."""
  out = {
    'model_type': 'qwen3',
    'hidden_act': 'silu',
    'attention_bias': False,
    'rope_scaling': None,
    'target_hidden_size': config['target_hidden_size'],
    **fields.shared(config),
    **windows.to_fields(config['layer_windows'], config['num_hidden_layers']),
    **keys,
  }
  return out, names.renamed(tensors, names.inverse(PAIRS))
