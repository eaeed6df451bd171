# SPDX-License-Identifier: MIT
"""Renaming tensors, both ways, from one table of pairs."""

import re
from collections.abc import Iterable

from jspec import errors
from jspec.drafters.formats import shapes

Pairs = Iterable[tuple[str, str]]

_PREFIXES = ('draft_model.', 'model.')
_LAYER = re.compile(r'(layers\.\d+\.)(.+)')


def strip(names: Iterable[str]) -> dict[str, str]:
  """Full name -> name without the prefixes that wrappers add.

  Raises:
    UserError: two names become one.
  """
  found = {}
  for name in names:
    short = name
    while short.startswith(_PREFIXES):
      short = short.split('.', 1)[1]
    found[name] = short
  _check_distinct(found)
  return found


def renamed(tensors: shapes.Tensors, pairs: Pairs) -> shapes.Tensors:
  """Tensors under new names; a pair holds at the top and inside layers.

  Raises:
    UserError: two tensors get one name.
  """
  table = dict(pairs)
  new = {name: _new(name, table) for name in tensors}
  _check_distinct(new)
  return {new[name]: values for name, values in tensors.items()}


def inverse(pairs: Pairs) -> list[tuple[str, str]]:
  """The pairs, the other way."""
  return [(new, old) for old, new in pairs]


def called(tensors: Iterable[str], pairs: Pairs) -> dict[str, str]:
  """New name -> the name before, of `renamed`; for absent ones too."""
  table = dict(pairs)
  found = {new: old for old, new in table.items()}
  return found | {_new(name, table): name for name in tensors}


def _new(name, table):
  inside = _LAYER.fullmatch(name)
  if inside:
    return inside.group(1) + table.get(inside.group(2), inside.group(2))
  return table.get(name, name)


def _check_distinct(new):
  seen = {}
  for old, name in new.items():
    if name in seen:
      raise errors.UserError(
        f'tensors {seen[name]} and {old} are both {name}; drop one'
      )
    seen[name] = old
