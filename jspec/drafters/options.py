# SPDX-License-Identifier: MIT
"""Values of a drafter's config: refused by name, and changed for decoding."""

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from jspec import errors, tree

_Config = TypeVar('_Config')


def need(holds: bool, name: str, value, expected: str) -> None:
  """Refuses a value by name, with what was expected.

  Raises:
    UserError: it does not hold.
  """
  if not holds:
    raise errors.UserError(f'{name}={value}: expected {expected}')


def check_shared(config: Any) -> None:
  """Refuses what no drafter takes, of the fields that all configs have.

  Raises:
    UserError: by name, with what was expected.
  """
  distinct = len(set(config.taps)) == len(config.taps) > 0
  last = config.target_num_layers - 1
  need(
    distinct and all(0 <= tap <= last for tap in config.taps),
    'taps',
    config.taps,
    f'distinct layers in 0..{last}',
  )
  need(
    config.num_heads % config.num_kv_heads == 0,
    'num_heads',
    config.num_heads,
    f'a multiple of num_kv_heads ({config.num_kv_heads})',
  )
  size = config.draft_vocab_size
  need(
    size is None or 1 <= size <= config.vocab_size,
    'draft_vocab_size',
    size,
    f'None or 1..{config.vocab_size} (vocab_size)',
  )
  most = tree.MAX_NODES - 1
  need(
    0 <= config.tree_size <= most,
    'tree_size',
    config.tree_size,
    f'0 (a chain) to {most}',
  )
  need(config.support >= 1, 'support', config.support, 'at least 1')


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
