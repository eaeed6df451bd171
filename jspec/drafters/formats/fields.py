# SPDX-License-Identifier: MIT
"""Reading a foreign config.json: every key is used, known harmless, or refused.

A reader takes what it uses out of a dict, so what is left at the end is what
nobody understood. What a config lacks is asked for with `--set`; a guess would
load, run and draft badly without a word. Sources: Hugging Face's Qwen3 and
Llama configs, AngelSpec, z-lab DFlash, DeepSpec.
"""

from collections.abc import Collection, Mapping
from typing import Any

from jspec import errors

FORMAT = 1

# Say whose drafter it is; kept.
CARRIED = frozenset({'target_fingerprint', 'target_name', 'target_template'})
# Harmless, and not kept: of the program that wrote them, of its training, or
# of a language model that a drafter is not.
DROPPED = frozenset(
  {
    '_angelspec_version',
    '_name_or_path',
    'attention_dropout',
    'auto_map',
    'bos_token_id',
    'dtype',
    'eos_token_id',
    'initializer_range',
    'max_position_embeddings',
    'num_anchors',
    'pad_token_id',
    'tie_word_embeddings',
    'torch_dtype',
    'transformers_version',
    'use_cache',
  }
)
# Change the computation; all layouts here compute the first value only.
_FIXED = {
  'attention_bias': (False, None),
  'hidden_act': ('silu', None),
  'mlp_bias': (False, None),
  'partial_rotary_factor': (1.0, None),
  'pretraining_tp': (1, None),
}
# Of what kind a value must be, where readers look inside it.
_KINDS = {
  'a whole number from 0': (
    *('hidden_size', 'num_attention_heads', 'num_key_value_heads', 'head_dim'),
    *('vocab_size', 'draft_vocab_size', 'sliding_window', 'max_window_layers'),
    *('num_hidden_layers', 'target_hidden_size', 'intermediate_size'),
  ),
  'a list of whole numbers': (
    *('target_layer_ids', 'eagle_aux_hidden_state_layer_ids'),
  ),
  'a list of words': ('architectures', 'layer_types'),
  'a word': ('model_arch', 'model_type'),
  'an object': ('rope_parameters', 'rope_scaling'),
}
# What a user may write after --set, where it is not a plain number.
_EXAMPLES = {
  'block_size': '8',
  'd2t': 'offset',
  'gate_temperature': '1.0',
  'label_shift': '0',
  'mask_token_id': '151669',
  'num_draft_tokens': '7',
  'num_experts_per_tok': '8',
  'rms_norm_eps': '1e-6',
  'rope_theta': '10000',
  'router_scaling_factor': '1.0',
  'target_layer_ids': '[1,9,17,25,33]',
}


def begin(
  config: Mapping[str, Any],
  extra: Mapping[str, Any],
  *,
  nested: Collection[str] = (),
) -> tuple[dict[str, Any], dict[str, Any]]:
  """Returns (what is to be read, what is carried over).

  Args:
    config: as in config.json.
    extra: keys the config lacks.
    nested: names of objects whose keys count as keys of the config.

  Raises:
    UserError: two places contradict each other.
  """
  left = {k: v for k, v in config.items() if k not in nested}
  for name in nested:
    inner = config.get(name) or {}
    if not isinstance(inner, Mapping):
      raise errors.UserError(f'{name}={inner!r} is not an object of keys')
    _fill(left, inner, f'in {name}')
  _fill(left, extra, 'as given')
  for kind, keys in _KINDS.items():
    for key in keys:
      if left.get(key) is not None and not _is(left[key], kind):
        raise errors.UserError(f'{key}={left[key]!r}: expected {kind}')
  carried = {key: left.pop(key) for key in CARRIED & left.keys()}
  for key in DROPPED & left.keys():
    del left[key]
  for key, allowed in _FIXED.items():
    fixed(left, key, allowed)
  return left, carried


def _is(value, kind):
  if kind.startswith('a list'):
    return isinstance(value, list) and all(
      type(item) is (str if 'words' in kind else int) for item in value
    )
  if kind == 'an object':
    return isinstance(value, Mapping)
  if kind == 'a word':
    return isinstance(value, str)
  return type(value) is int and value >= 0


def _fill(left, values, whence):
  for key, value in values.items():
    if left.get(key) is not None and left[key] != value:
      raise errors.UserError(
        f'{key} is {left[key]!r}, but {value!r} {whence}; keep one'
      )
    left[key] = value


def finish(left: Mapping[str, Any]) -> None:
  """Refuses keys that nobody took.

  Raises:
    UserError: naming them.
  """
  if left:
    raise errors.UserError(
      f'unknown config keys {", ".join(sorted(left))}: they may change what is'
      ' computed; drop those that do not from config.json'
    )


def fixed(left: dict[str, Any], key: str, allowed: tuple) -> None:
  """Takes a key that may only have certain values; None stands for absent.

  Raises:
    UserError: another value.
  """
  value = left.pop(key, allowed[-1])
  if value not in allowed:
    raise errors.UserError(
      f'{key}={value!r} is not supported, only {allowed[0]!r}'
    )


def stated(left: dict[str, Any], key: str, found: Any, where: str) -> None:
  """Takes a key that repeats what the tensors say.

  Raises:
    UserError: with both values.
  """
  value = left.pop(key, None)
  if value is not None and value != found:
    raise errors.UserError(
      f'{key} is {value!r} in the config, {found!r} by {where}; one of them is'
      ' of another checkpoint'
    )


def require(left: Mapping[str, Any], keys: Collection[str]) -> None:
  """Refuses a config without these keys.

  Raises:
    UserError: all that are missing, and how to give them.
  """
  missing = [key for key in keys if left.get(key) is None]
  if missing:
    how = ' '.join(f'--set {k}={_EXAMPLES.get(k, "NUMBER")}' for k in missing)
    raise errors.UserError(
      f'the config does not say {", ".join(missing)}; give them as the drafter'
      f' was trained, like {how}'
    )


def integer(left: dict[str, Any], key: str) -> int:
  """Takes a whole number that `require` has seen.

  Raises:
    UserError: not a whole number from 0.
  """
  value, kind = left.pop(key), 'a whole number from 0'
  if not _is(value, kind):
    raise errors.UserError(f'{key}={value!r}: expected {kind}')
  return value


def number(left: dict[str, Any], key: str) -> float:
  """Takes a positive number that `require` has seen.

  Raises:
    UserError: not a number above 0.
  """
  value = left.pop(key)
  is_number = isinstance(value, int | float) and not isinstance(value, bool)
  if not is_number or value <= 0:
    raise errors.UserError(f'{key}={value!r}: expected a number above 0')
  return value


def flag(left: dict[str, Any], key: str) -> bool:
  """Takes a truth value that `require` has seen.

  Raises:
    UserError: neither true nor false.
  """
  value = left.pop(key)
  if not isinstance(value, bool):
    raise errors.UserError(f'{key}={value!r}: expected true or false')
  return value


def layer_ids(left: dict[str, Any], depth: int) -> list[int]:
  """Takes target_layer_ids: 0-based layers of a target of `depth`.

  Raises:
    UserError: not distinct layers of that target.
  """
  ids = left.pop('target_layer_ids')
  if not ids or len(set(ids)) != len(ids):
    raise errors.UserError(
      f'target_layer_ids={ids!r}: expected distinct layers, like [1,9,17]'
    )
  if min(ids) < 0 or max(ids) >= depth:
    raise errors.UserError(
      f'target_layer_ids {ids} reach {max(ids)}, but the target has {depth}'
      ' layers (0-based outputs); one of them is of another target'
    )
  return list(ids)


def rope_theta(left: dict[str, Any]) -> None:
  """Brings the rotary base to the top, from either layout of the fields.

  Raises:
    UserError: a scaling, which no drafter here has.
  """
  parameters = left.pop('rope_parameters', None)
  scaling = left.pop('rope_scaling', None)
  for name, found in ('rope_parameters', parameters), ('rope_scaling', scaling):
    rest = dict(found or {})
    inner = rest.pop('rope_theta', None)
    kinds = {rest.pop('rope_type', 'default'), rest.pop('type', 'default')}
    if kinds != {'default'} or any(v is not None for v in rest.values()):
      raise errors.UserError(
        f'{name}={found} is not supported: drafters have plain rotary positions'
      )
    if inner is not None:
      _fill(left, {'rope_theta': inner}, f'in {name}')


def same(left: dict[str, Any], key: str, value: Any, whence: str) -> None:
  """Adds a key that the config may already have.

  Raises:
    UserError: it has another value.
  """
  _fill(left, {key: value}, f'by {whence}')


def only(config: Mapping[str, Any], key: str, *allowed: Any) -> None:
  """Refuses to write what a layout cannot say.

  Raises:
    UserError: the native value is none of these.
  """
  if config.get(key) not in allowed:
    choices = ' or '.join(repr(value) for value in allowed)
    raise errors.UserError(
      f'{key} is {config.get(key)!r}; this layout can only say {choices}'
    )


def shared(config: Mapping[str, Any]) -> dict[str, Any]:
  """Keys that native configs and foreign ones have in common."""
  keys = (
    *('hidden_size', 'intermediate_size', 'num_hidden_layers', 'vocab_size'),
    *('num_attention_heads', 'num_key_value_heads', 'head_dim'),
    *('rms_norm_eps', 'rope_theta', 'block_size', 'num_draft_tokens'),
    *('label_shift', *sorted(CARRIED)),
  )
  return {key: config[key] for key in keys if key in config}
