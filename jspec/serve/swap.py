# SPDX-License-Identifier: MIT
"""A drafter takes another's place while the engine serves.

Programs take drafters by their arrays, so one that was trained further runs in
the same programs. Answers do not change, whoever drafts. Rows that decode keep
what the old drafter wrote, which makes their drafts worse until they end.
"""

from typing import Any

import jax

from jspec import errors
from jspec.drafters import mixed


def replaced(old: Any, new: Any, name: str | None = None) -> Any:
  """The engine's drafter with `new` in its place.

  Args:
    old: that the engine was started with.
    new: who drafts from now on.
    name: which member of a mixture it replaces; None: the only drafter.

  Raises:
    UserError: there is nobody of that name, or the programs that were compiled
      cannot run the new one.
  """
  if isinstance(old, mixed.Mixed):
    if name not in old.names:
      raise errors.UserError(
        f'drafter {name!r} cannot be replaced: there are {", ".join(old.names)}'
      )
    members = dict(zip(old.names, old.members, strict=True))
    members[name] = replaced(members[name], new)
    return mixed.Mixed(members)
  if name is not None or old is None:
    serves = 'decodes plainly' if old is None else 'serves one without a name'
    raise errors.UserError(
      f'drafter {name!r} cannot be replaced: the engine {serves}'
    )
  if _form(old) != _form(new):
    raise errors.UserError(
      'the new drafter has another method, shapes or options than the one it'
      ' replaces, for which programs were compiled: start the engine anew'
    )
  return new


def _form(drafter):
  """What a program is compiled for."""
  shapes = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(drafter)]
  return jax.tree.structure(drafter), shapes
