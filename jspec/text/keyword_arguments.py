# SPDX-License-Identifier: MIT
r"""Arguments with names, as a grammar: `city="Paris", days=3`.

  args: args_a_0 args_b_1 | args_b_1 ...       what may come first
  args_0: "city=" %json {"type": "string"}     one argument
  args_1: "days=" %json {"type": "integer"}

Values are JSON, which `formats.python_text` takes too; arguments come in the
order of the schema, those that are not required may be left out, others than
the schema names are not written.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from jspec import errors

_KEY = re.compile(r'[A-Za-z_][\w-]*')
# What says nothing of which arguments there are, or is passed on.
_PLAIN = frozenset(
  ('type', 'properties', 'required', 'additionalProperties', '$defs')
  + ('definitions', '$schema', '$id', 'title', 'description', 'examples')
  + ('default', '$comment')
)
_OPTIONS_KEY = 'x-guidance'


def rules(
  rule: str,
  schema: Mapping[str, Any],
  function: str,
  options: Mapping[str, Any],
) -> list[str]:
  """Returns the rules for the arguments of a function.

  Args:
    rule: name of the first of them.
    schema: of the arguments.
    function: its name, for errors.
    options: of the grammar engine, for values.

  Raises:
    UserError: the schema says what cannot be said of such arguments.
  """
  for key in schema:
    if key not in _PLAIN:
      raise errors.UserError(
        f'the parameters of {function} have {key!r}, which cannot be enforced'
        ' in the way this model writes calls (key=value); list plain'
        ' properties'
      )
  properties = schema.get('properties') or {}
  required = schema.get('required') or []
  # A required one that is not described may be anything.
  properties = {
    **properties,
    **{k: {} for k in required if k not in properties},
  }
  for key in properties:
    if not _KEY.fullmatch(key):
      raise errors.UserError(
        f'the parameters of {function} have {key!r}, which this model cannot'
        ' write as the name of an argument; rename it'
      )
  shared = {k: schema[k] for k in ('$defs', 'definitions') if k in schema}
  lines, is_needed = [], [key in required for key in properties]
  for i, (key, value) in enumerate(properties.items()):
    if value is True:
      value = {}
    if not isinstance(value, Mapping):
      raise errors.UserError(
        f'the parameters of {function}: {key!r} has no schema; give an object'
      )
    if _OPTIONS_KEY in value:
      raise errors.UserError(
        f'the parameters of {function} have {_OPTIONS_KEY!r}, options of the'
        ' grammar engine that a request may not set; leave it out'
      )
    text = json.dumps({**shared, **value, _OPTIONS_KEY: dict(options)})
    lines.append(f'{rule}_{i}: {json.dumps(key + "=")} %json {text}')
  return [f'{rule}: {" | ".join(_orders(rule, is_needed))}', *lines]


def _orders(rule, is_needed):
  """What the arguments may be, by which of them is the first."""
  found = []
  for first in range(len(is_needed)):
    parts = [f'{rule}_{first}']
    for i in range(first + 1, len(is_needed)):
      part = f'", " {rule}_{i}'
      parts.append(part if is_needed[i] else f'({part})?')
    found.append(' '.join(parts))
    if is_needed[first]:
      return found
  return [*found, '""']
