# SPDX-License-Identifier: MIT
"""Fields of a Hugging Face `config.json` that families share.

Readers take what they use out of a dict, so that what is left at the end is
what nobody understood. Both layouts of the rotary fields are read:

  transformers 5   rope_parameters: {rope_theta, rope_type, factor, ...}
  transformers 4   rope_theta at the top, rope_scaling: null or {rope_type, ...}
"""

from collections.abc import Mapping
from typing import Any

from jspec import errors
from jspec.nn import rope

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


def count(left: dict[str, Any], name: str, where: str) -> int:
  """Takes a whole number above 0 out of `left`."""
  value = left.pop(name, None)
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise errors.UserError(f'{where}: {name} is {value!r}, not a whole number')
  return value


def number(left: dict[str, Any], name: str, where: str) -> float:
  """Takes a number out of `left`."""
  value = left.pop(name, None)
  if isinstance(value, bool) or not isinstance(value, (int, float)):
    raise errors.UserError(f'{where}: {name} is {value!r}, not a number')
  return float(value)
