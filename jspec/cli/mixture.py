# SPDX-License-Identifier: MIT
"""Several drafters for one engine, from one text.

  shipped,ngram                         two, by the names of their kinds
  shipped,tree_size=7,ngram             the first with an option
  fast=ngram,slow=suffix,tree_size=16   by names of your own

A part with a `=` is an option of the drafter before it, unless a drafter comes
behind the `=`: then it is one more, and has that name. Requests that name
nobody get the first.
"""

import pathlib
from typing import Any

from jspec import errors

KINDS = ('ngram', 'shipped', 'suffix')
_NONE = 'none'


def load(spec: str, loaded: Any) -> Any:
  """The drafter that a text names, or a mixture (`drafters.mixed`) of several.

  Args:
    spec: see the module docstring, or as `loading.load_drafter` takes it.
    loaded: the target (`loading.LoadedTarget`).

  Raises:
    UserError: as `loading.load_drafter`, or names that do not tell the drafters
      apart.
  """
  from jspec import loading
  from jspec.drafters import mixed

  found = split(spec)
  if len(found) == 1 and found[0][0] is None:
    return loading.load_drafter(spec, loaded)
  specs = {}
  for given, part in found:
    name = given or short_name(part)
    if name in specs:
      raise errors.UserError(
        f'--drafter {spec}: two drafters are called {name}; name them, as in'
        f' {name}=..,{name}_2=..'
      )
    if _NONE in (name, part):
      raise errors.UserError(
        f'--drafter {spec}: none can be asked for beside any drafters; leave it'
        ' out'
      )
    specs[name] = part
  return mixed.Mixed(
    {name: loading.load_drafter(part, loaded) for name, part in specs.items()}
  )


def split(spec: str) -> list[tuple[str | None, str]]:
  """The drafters of a text, each with the name it is given, or None.

  'a=ngram,num_draft_tokens=2,suffix' -> [('a', 'ngram,num_draft_tokens=2'),
  (None, 'suffix')]
  """
  found = []
  for part in spec.split(','):
    key, equals, value = part.partition('=')
    if not equals:
      found.append((None, part))
    elif _is_drafter(value):
      found.append((key, value))
    elif found:
      name, before = found[-1]
      found[-1] = name, f'{before},{part}'
    else:
      raise errors.UserError(
        f'--drafter {spec}: {value!r} is no drafter and there is none before'
        f' it; use {", ".join(KINDS)}, a checkpoint folder or module:attr'
      )
  return found


def short_name(spec: str) -> str:
  """What a drafter is called if nobody says: its kind, folder or attribute."""
  name = spec.split(',')[0]
  if name in KINDS or ':' not in name:
    return pathlib.Path(name).expanduser().resolve().name
  return name.partition(':')[2]


def _is_drafter(text):
  if text in (*KINDS, _NONE) or pathlib.Path(text).expanduser().is_dir():
    return bool(text)
  module, colon, attribute = text.partition(':')
  names = (*module.split('.'), attribute)
  return bool(colon) and all(name.isidentifier() for name in names)
