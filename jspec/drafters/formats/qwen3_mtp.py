# SPDX-License-Identifier: MIT
"""Dense MTP as vLLM serves it for Qwen3 (model_type qwen3_mtp).

`mtp.fc`, `mtp.pre_fc_norm_*`, `mtp.norm` and one layer `mtp.layers.0`; the
config is the target's, so num_hidden_layers is its depth. The server gives the
target's normed state. Embedding and head may come along, being the target's.
"""

from typing import Any

from jspec.drafters.formats import copies, fields, mtp, names, shapes, windows

_PAIRS = (
  ('mtp.fc.weight', 'eh_proj.weight'),
  ('mtp.pre_fc_norm_embedding.weight', 'enorm.weight'),
  ('mtp.pre_fc_norm_hidden.weight', 'hnorm.weight'),
  ('mtp.norm.weight', 'final_layernorm.weight'),
)
_THEIRS, _OURS = 'mtp.layers.0.', 'midlayer.'
_POSTNORM = 'mtp_draft_input_postnorm'


def to_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  extra: dict[str, Any],
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts to the native checkpoint; see `layouts.to_native`."""
  left, carried = fields.begin(config, extra)
  of_target(left)
  new = {name: _swap(name, _THEIRS, _OURS) for name in tensors}
  moved = {new[name]: values for name, values in tensors.items()}
  called = {ours: name for name, ours in new.items()}
  called |= names.called((), _PAIRS)
  found = names.renamed(moved, _PAIRS)
  copied = copies.take(found)
  native = mtp.to_config(left, found, called)
  size = {'vocab_size': native['vocab_size'], 'width': native['hidden_size']}
  copies.check(copied, target, **size)
  return native | carried, found


def of_target(left: dict[str, Any]) -> None:
  """Takes what a config says of the target whose config it is.

  Raises:
    UserError: it contradicts what is given.
  """
  depth = left.pop('num_hidden_layers', None)
  if depth is not None:
    fields.same(left, 'target_num_hidden_layers', depth, 'num_hidden_layers')
    windows.take(left, depth)  # Of the target's layers, not of this one.
  fields.same(left, _POSTNORM, True, 'what servers give')


def from_native(
  config: dict[str, Any],
  tensors: shapes.Tensors,
  target: copies.Target | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Converts from the native checkpoint; see `layouts.from_native`."""
  del target  # Nothing of it is copied.
  fields.only(config, 'num_experts', 0)
  out = served_config(config)
  out |= {'architectures': ['Qwen3MTPForCausalLM'], 'model_type': 'qwen3_mtp'}
  found = {_swap(name, _OURS, _THEIRS): v for name, v in tensors.items()}
  return out, names.renamed(found, names.inverse(_PAIRS))


def served_config(config: dict[str, Any]) -> dict[str, Any]:
  """A config that says the target's depth and one layer to draft with.

  Raises:
    UserError: what servers compute otherwise.
  """
  fields.only(config, 'model_type', 'mtp')
  fields.only(config, 'draft_vocab_size', None)
  fields.only(config, _POSTNORM, True)
  fields.only(config, 'target_hidden_size', config['hidden_size'])
  mtp.check_conventions(config)
  return {
    'hidden_act': 'silu',
    'attention_bias': False,
    'rope_scaling': None,
    'qk_norm': config['qk_norm'],
    'num_nextn_predict_layers': 1,
    **fields.shared(config),
    'num_hidden_layers': config['target_num_hidden_layers'],
  }


def _swap(name, old, new):
  return new + name.removeprefix(old) if name.startswith(old) else name
