# SPDX-License-Identifier: MIT
"""Fields of a Hugging Face `config.json` that families share.

Readers take what they use out of a dict, so that what is left at the end is
what nobody understood. Both layouts of the rotary fields are read:

  transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
  transformers 4   rope_theta at the top, rope_scaling: null or {rope_type, ...}
"""

from collections.abc import Collection, Mapping
from typing import Any

from jspec import errors
from jspec.nn import rope

# Training, bookkeeping, and token ids that the tokenizer side reads.
IGNORED = frozenset(
  {
    '_name_or_path',
    'architectures',
    'attention_dropout',
    'auto_map',
    'bos_token_id',
    'chunk_size_feed_forward',
    'dtype',
    'eos_token_id',
    'id2label',
    'initializer_range',
    'label2id',
    'model_type',
    'output_attentions',
    'output_hidden_states',
    'pad_token_id',
    'return_dict',
    'torch_dtype',
    'transformers_version',
    'unk_token_id',
    'use_cache',
  }
)
FULL, SLIDING = 'full_attention', 'sliding_attention'

_FIELDS = {
  'default': {},
  'linear': {'factor': 'factor'},
  'llama3': {
    'factor': 'factor',
    'low_freq_factor': 'low_freq_factor',
    'high_freq_factor': 'high_freq_factor',
    'original_max_position_embeddings': 'original_max_len',
  },
  'yarn': {
    'factor': 'factor',
    'original_max_position_embeddings': 'original_max_len',
    'attention_factor': 'attention_factor',
    'beta_fast': 'beta_fast',
    'beta_slow': 'beta_slow',
  },
}
_REQUIRED = frozenset(
  {
    'factor',
    'low_freq_factor',
    'high_freq_factor',
    'original_max_position_embeddings',
  }
)


def shared(
  left: dict[str, Any], where: str, *, tied: bool = False
) -> dict[str, Any]:
  """Takes what all families call alike out of `left`.

  Args:
    left: the fields nobody has read.
    where: the file, for messages.
    tied: whether the head is the embedding where the config does not say.

  Returns:
    Fields of `architecture.TransformerConfig`.
  """
  width = count(left, 'hidden_size', where)
  num_heads = count(left, 'num_attention_heads', where)
  if left.get('head_dim') is None:
    left['head_dim'] = width // num_heads
  if left.get('num_key_value_heads') is None:
    left['num_key_value_heads'] = num_heads
  return dict(
    num_layers=count(left, 'num_hidden_layers', where),
    width=width,
    num_heads=num_heads,
    num_kv_heads=count(left, 'num_key_value_heads', where),
    head_width=count(left, 'head_dim', where),
    vocab_size=count(left, 'vocab_size', where),
    max_len=count(left, 'max_position_embeddings', where),
    norm_eps=number(left, 'rms_norm_eps', where),
    tied=flag(left, 'tie_word_embeddings', where, tied),
  )


def windows(
  left: dict[str, Any], num_layers: int, window: int | None, where: str
) -> tuple[int | None, ...] | None:
  """Takes `layer_types` out of `left`, as the window of each layer.

  Returns None where the config has no such field.
  """
  kinds = left.pop('layer_types', None)
  if kinds is None:
    return None
  if not isinstance(kinds, list) or len(kinds) != num_layers:
    raise errors.UserError(
      f'{where}: layer_types must be a list of {num_layers}, one a layer'
    )
  odd = sorted({str(kind) for kind in kinds} - {FULL, SLIDING})
  if odd:
    raise errors.UserError(
      f'{where}: layer_types {", ".join(odd)} is not supported, only {FULL} and'
      f' {SLIDING}'
    )
  if SLIDING in kinds and window is None:
    raise errors.UserError(
      f'{where}: layer_types has {SLIDING} but there is no sliding_window'
    )
  found = tuple(window if kind == SLIDING else None for kind in kinds)
  return found if any(found) else ()


def expect(
  left: dict[str, Any], allowed: Mapping[str, Collection[Any]], where: str
) -> None:
  """Takes fields out of `left` that must have a value this stack computes.

  Args:
    left: the fields nobody has read.
    allowed: values by field, the one of a config that lacks it first.
    where: the file, for messages.
  """
  for name, values in allowed.items():
    value = left.pop(name, values[0])
    if value not in values:
      raise errors.UserError(
        f'{where}: {name} {value!r} is not supported, only {values[0]!r}'
      )


def finish(
  left: dict[str, Any], where: str, ignored: Collection[str] = ()
) -> None:
  """Refuses, by name, what is left and is not known to be harmless."""
  unknown = sorted(left.keys() - IGNORED - set(ignored))
  if unknown:
    raise errors.UserError(
      f'{where}: field {", ".join(unknown)} is not known to jspec and may'
      ' change the model; remove it if it does not'
    )


def rotary(left: dict[str, Any], max_len: int, where: str) -> rope.RopeConfig:
  """Takes the rotary fields, in either layout, out of `left`."""
  parameters = left.pop('rope_parameters', None)
  scaling = left.pop('rope_scaling', None)
  base = left.pop('rope_theta', None)
  if parameters is not None and scaling is not None:
    raise errors.UserError(
      f'{where}: rope_parameters and rope_scaling exclude each other; keep one'
    )
  found = parameters if parameters is not None else scaling
  if not isinstance(found or {}, Mapping):
    raise errors.UserError(
      f'{where}: rotary fields {found!r} are not an object'
    )
  rest = dict(found or {})
  inner = rest.pop('rope_theta', None)
  if inner is not None and base is not None and inner != base:
    raise errors.UserError(
      f'{where}: rope_theta is {base} at the top and {inner} in rope_parameters'
    )
  base = inner if inner is not None else base
  if base is None and parameters is not None:
    raise errors.UserError(f'{where}: rope_parameters has no rope_theta')
  # The default of Llama 1 and 2 configs, which do not write it.
  rest['rope_theta'] = 10000.0 if base is None else base
  kind = rest.pop('rope_type', None)
  old_kind = rest.pop('type', None)
  if kind is not None and old_kind is not None and kind != old_kind:
    raise errors.UserError(
      f'{where}: rope_type {kind!r} contradicts type {old_kind!r}'
    )
  kind = kind or old_kind or 'default'
  if kind not in ('default', 'linear', 'llama3', 'yarn'):
    raise errors.UserError(
      f'{where}: rope_type {kind!r} is not supported; use default, linear,'
      ' llama3 or yarn'
    )
  if kind == 'yarn':
    # HF's own default when the field is left out.
    rest.setdefault('original_max_position_embeddings', max_len)
  values = {'base': number(rest, 'rope_theta', where)}
  for field, name in _FIELDS[kind].items():
    if field in rest or field in _REQUIRED:
      values[name] = number(rest, field, where)
  if 'truncate' in rest and kind == 'yarn':
    values['truncate'] = bool(rest.pop('truncate'))
  if rest:
    raise errors.UserError(
      f'{where}: rotary field {", ".join(sorted(rest))} is not supported with'
      f' rope_type {kind!r}'
    )
  if 'original_max_len' in values:
    values['original_max_len'] = int(values['original_max_len'])
  return rope.RopeConfig(kind=kind, **values)


def rotary_fields(config: rope.RopeConfig) -> dict[str, Any]:
  """Returns the fields that `rotary` reads, in the layout of transformers 4."""
  found = {'rope_theta': config.base}
  if config.kind != 'default':
    values = {
      field: getattr(config, name)
      for field, name in _FIELDS[config.kind].items()
    }
    said = {field: x for field, x in values.items() if x is not None}
    found['rope_scaling'] = {'rope_type': config.kind, **said}
  return found


def count(left: dict[str, Any], name: str, where: str) -> int:
  """Takes a whole number above 0 out of `left`."""
  value = left.pop(name, None)
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise errors.UserError(f'{where}: {name} is {value!r}, not a whole number')
  return value


def whole(left: dict[str, Any], name: str, where: str) -> int:
  """Takes a whole number from 0 out of `left`."""
  if left.get(name) == 0 and left[name] is not False:
    return left.pop(name)
  return count(left, name, where)


def optional_count(left: dict[str, Any], name: str, where: str) -> int | None:
  """Takes a whole number above 0 out of `left`; null and absent are None."""
  if left.get(name) is None:
    left.pop(name, None)
    return None
  return count(left, name, where)


def number(left: dict[str, Any], name: str, where: str) -> float:
  """Takes a number out of `left`."""
  value = left.pop(name, None)
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise errors.UserError(f'{where}: {name} is {value!r}, not a number')
  return float(value)


def flag(left: dict[str, Any], name: str, where: str, default: bool) -> bool:
  """Takes true or false out of `left`."""
  value = left.pop(name, default)
  if not isinstance(value, bool):
    raise errors.UserError(f'{where}: {name} is {value!r}, not true or false')
  return value
