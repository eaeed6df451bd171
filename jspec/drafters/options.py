# SPDX-License-Identifier: MIT
"""Values of a drafter's config: refused by name, and changed for decoding."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from jspec import errors

_Config = TypeVar('_Config')


def need(holds: bool, name: str, value, expected: str) -> None:
  """Refuses a value by name, with what was expected.

  Raises:
    UserError: it does not hold.
  """
  if not holds:
    raise errors.UserError(f'{name}={value}: expected {expected}')


def replaced(
  config: _Config, allowed: Collection[str], changes: Mapping[str, Any]
) -> _Config:
  """The config with other values for fields that only say how to decode.

  Args:
    config: a frozen dataclass, which checks its own values.
    allowed: names of these fields.
    changes: new values by name; whole numbers do for fractions, lists for
      tuples.

  Raises:
    UserError: no such option, or a value that does not fit.
  """
  fields = {}
  for name, value in changes.items():
    if name not in allowed:
      raise errors.UserError(
        f'{name}: no option of this drafter; there are {", ".join(allowed)}'
      )
    kind = type(getattr(config, name))
    also = {float: int, tuple: list}.get(kind, kind)
    need(isinstance(value, (kind, also)), name, repr(value), kind.__name__)
    fields[name] = kind(value)
  return dataclasses.replace(config, **fields)
