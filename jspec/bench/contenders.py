# SPDX-License-Identifier: MIT
"""Who is compared on one engine, by name, and how a name is put in charge.

plain      no drafting
full       the whole draft, always
guarded    the first policy under the guard: what a user gets
a policy   it alone, whatever it costs:  dcut   static,depth=2   first_drop
"""

from collections.abc import Sequence

from jspec import errors
from jspec.depth import guard
from jspec.serve import engine as engine_lib

PLAIN, FULL, GUARDED = 'plain', 'full', 'guarded'
OTHERS = (PLAIN, FULL, GUARDED)


def policies(names: Sequence[str]) -> list[str]:
  """The depth policies among names; an engine must have these, in this order.

  Raises:
    UserError: no name, or one that is there twice.
  """
  if not names:
    raise errors.UserError('no policy to measure: name one, such as dcut')
  for name in names:
    if list(names).count(name) > 1:
      raise errors.UserError(
        f'policy {name} is there twice: name each once (what is random is seen'
        ' in more launches, not in more names)'
      )
  return [name for name in names if name not in OTHERS]


def put(engine: engine_lib.Engine, names: Sequence[str], name: str) -> None:
  """Lets the launches from now on run under a name."""
  own = policies(names)
  engine.forms.pinned = {
    PLAIN: guard.PLAIN,
    FULL: guard.FULL,
    GUARDED: None,
  }.get(name, guard.ADAPTIVE)
  engine.policy = own.index(name) if name in own else 0


def leave(engine: engine_lib.Engine) -> None:
  """Lets an engine come to rest, under the guard as it was."""
  while engine.has_work:
    engine.step()
  engine.forms.pinned, engine.policy = None, 0
