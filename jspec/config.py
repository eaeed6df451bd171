# SPDX-License-Identifier: MIT
"""Configs: an argument string, a ConfigDict at the edge, a dataclass inside.

A config file is Python with `get_config(arg: str) -> ConfigDict`; it imports
this module and ml_collections only. Values reach the program in three steps:

  FILE.py:target=smollm2_135m,smoke              argument string  parse_arg
  --config.optim.learning_rate=3e-4              override  apply_overrides
  TrainConfig(optim=OptimConfig(learning_rate=3e-4))       frozen  build

Types come from the defaults, and every name that nothing reads is an error.
"""

import dataclasses
import difflib
import importlib.util
import pathlib
import types
import typing
from collections.abc import Iterable
from typing import Any

import ml_collections

from jspec import errors

_TRUE = ('true', '1')
_FALSE = ('false', '0')
_NONE = ('none', 'null')


def parse_arg(arg: str | None, **defaults: Any) -> ml_collections.ConfigDict:
  """Reads an argument string such as `target=smollm2_135m,smoke`.

  A bare word is a boolean switched on. A default of None takes a string.

  Args:
    arg: the text behind the colon; None and '' mean all defaults.
    **defaults: every name that may appear, with a value that fixes its type.

  Returns:
    The defaults with the given values in place.

  Raises:
    UserError: an unknown name, a repeated name or a value of another type.
  """
  values = dict(defaults)
  seen = set()
  for part in [p.strip() for p in (arg or '').split(',') if p.strip()]:
    name, equals, text = part.partition('=')
    if name not in defaults:
      raise errors.UserError(
        f'config argument `{part}`: no name `{name}`; '
        + _suggest(name, defaults)
      )
    if name in seen:
      raise errors.UserError(f'config argument `{name}` is given twice')
    seen.add(name)
    if not equals:
      if not isinstance(defaults[name], bool):
        raise errors.UserError(
          f'config argument `{name}` needs a value: write `{name}=VALUE`'
        )
      values[name] = True
    else:
      values[name] = _parse(text, defaults[name], f'config argument `{name}`')
  return ml_collections.ConfigDict(values)


def load_file(spec: str) -> ml_collections.ConfigDict:
  """Runs `get_config(arg)` of a config file given as `PATH.py[:ARG]`."""
  path_text, _, arg = spec.partition(':')
  path = pathlib.Path(path_text)
  if not path.is_file():
    raise errors.UserError(f'no config file {path}: give PATH.py[:ARG]')
  module_spec = importlib.util.spec_from_file_location('jspec_config', path)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, 'get_config'):
    raise errors.UserError(f'{path} has no get_config(arg): it is no config')
  return module.get_config(arg)


def apply_overrides(
  config: ml_collections.ConfigDict, overrides: Iterable[str]
) -> None:
  """Sets `dotted.name=value` pairs in place; types come from the old values."""
  for override in overrides:
    name, equals, text = override.partition('=')
    if not equals:
      raise errors.UserError(
        f'override `{override}` has no value: write --config.{name}=VALUE'
      )
    node, parts = config, name.split('.')
    for depth, part in enumerate(parts):
      if not isinstance(node, ml_collections.ConfigDict) or part not in node:
        known = list(node) if hasattr(node, 'keys') else []
        raise errors.UserError(
          f'config has no key `{".".join(parts[: depth + 1])}`; '
          + _suggest(part, known)
        )
      if depth + 1 < len(parts):
        node = node[part]
    where = f'config key `{name}`'
    value = _parse(text, node[parts[-1]], where)
    with node.ignore_type():
      node[parts[-1]] = value


def build(cls: type, values: Any, where: str = 'config') -> Any:
  """Builds the frozen dataclass `cls` from a ConfigDict or a plain dict.

  Nested dataclasses are built from nested dicts. A key that is no field, a
  missing field without default and a value of another type are UserErrors.
  """
  given = values.to_dict() if hasattr(values, 'to_dict') else dict(values)
  fields = {field.name: field for field in dataclasses.fields(cls)}
  for name in given:
    if name not in fields:
      raise errors.UserError(
        f'{where} has no key `{name}`; ' + _suggest(name, fields)
      )
  hints = typing.get_type_hints(cls)
  built = {}
  for name, field in fields.items():
    if name in given:
      built[name] = _coerce(given[name], hints[name], f'{where}.{name}')
    elif (
      field.default is dataclasses.MISSING
      and field.default_factory is dataclasses.MISSING
    ):
      raise errors.UserError(f'{where} misses the key `{name}`: set it')
  return cls(**built)


def flatten(values: Any, prefix: str = '') -> dict[str, Any]:
  """Flattens nested dicts to dotted names: {'a': {'b': 1}} -> {'a.b': 1}."""
  flat = {}
  for name, value in values.items():
    if isinstance(value, dict) and value:
      flat.update(flatten(value, f'{prefix}{name}.'))
    else:
      flat[prefix + name] = value
  return flat


def _coerce(value, hint, where):
  """Checks a value against a field's type; ints may stand for floats."""
  if dataclasses.is_dataclass(hint):
    if dataclasses.is_dataclass(value):
      return value
    if not hasattr(value, 'keys'):
      raise errors.UserError(f'{where} is {value!r} but must be a section')
    return build(hint, value, where)
  origin = typing.get_origin(hint)
  if origin in (typing.Union, types.UnionType):
    choices = typing.get_args(hint)
    if value is None and type(None) in choices:
      return None
    (hint,) = [choice for choice in choices if choice is not type(None)]
    return _coerce(value, hint, where)
  if origin is tuple:
    if isinstance(value, str):
      # From the command line, where the default (None) says nothing of it.
      parts = [part.strip() for part in value.strip('()[] ').split(',')]
      value = [int(p) if p.lstrip('-').isdigit() else p for p in parts if p]
    if not isinstance(value, list | tuple):
      raise errors.UserError(f'{where} is {value!r} but must be a list')
    (item, *_) = typing.get_args(hint)
    return tuple(_coerce(entry, item, where) for entry in value)
  if origin is dict or hint is dict:
    if isinstance(value, str):
      # From the command line, where the default is None.
      value = _pairs(value, where)
    if not hasattr(value, 'keys'):
      raise errors.UserError(f'{where} is {value!r} but must be a section')
    *_, item = typing.get_args(hint) or (Any,)
    return {
      name: _coerce(entry, item, f'{where}.{name}')
      for name, entry in value.items()
    }
  if hint is Any:
    return value
  if hint is float and isinstance(value, int) and not isinstance(value, bool):
    return float(value)
  is_bool_for_number = isinstance(value, bool) and hint is not bool
  if not isinstance(value, hint) or is_bool_for_number:
    raise errors.UserError(
      f'{where} is {value!r} but must be of type {hint.__name__}'
    )
  return value


def _pairs(text, where):
  """Reads `math=2,code=0.5`; a value becomes a number or a truth if it can."""
  found = {}
  for part in text.strip().split(','):
    name, equals, value = (piece.strip() for piece in part.partition('='))
    if not (name and equals and value) or name in found:
      raise errors.UserError(
        f'{where}: `{part}` is not NAME=VALUE with a name of its own'
      )
    found[name] = value
    if value.lower() in ('true', 'false'):
      found[name] = value.lower() == 'true'
    for kind in (float, int):
      try:
        found[name] = kind(value)
      except ValueError:
        continue
  return found


def _parse(text, default, where):
  """Reads text as the type of the default."""
  try:
    if isinstance(default, bool):
      if text.lower() in _TRUE:
        return True
      if text.lower() in _FALSE:
        return False
      raise ValueError
    if isinstance(default, int):
      return int(text.replace('_', ''))
    if isinstance(default, float):
      return float(text)
    if isinstance(default, list | tuple):
      kind = default[0] if default else ''
      parts = [p for p in text.strip('()[] ').split(',') if p.strip()]
      return tuple(_parse(part.strip(), kind, where) for part in parts)
  except ValueError:
    raise errors.UserError(
      f'{where}: `{text}` is not of type {type(default).__name__}'
    ) from None
  if default is None or text.lower() in _NONE:
    if text.lower() in _NONE:
      return None
    return int(text) if text.lstrip('-').isdigit() else text
  if hasattr(default, 'keys'):
    raise errors.UserError(f'{where} is a section: set one key inside it')
  return text


def _suggest(name, known):
  names = sorted(known)
  close = difflib.get_close_matches(name, names, n=1)
  if close:
    return f'did you mean `{close[0]}`?'
  return 'known: ' + (', '.join(names) or 'nothing')
