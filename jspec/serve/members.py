# SPDX-License-Identifier: MIT
"""Which of the loaded drafters drafts for a request, or that none does.

Engines that serve a `drafters.mixed.Mixed` offer its members by name. Their
pages hold rows of one member, so the name is also the namespace under which
the prefix cache keeps them.
"""

from collections.abc import Hashable

from jspec import errors
from jspec.drafters import mixed


def name(request_id: Hashable, drafter, wanted: str | None) -> str | None:
  """The name of who drafts, in full; None if drafters have no names here.

  Args:
    request_id: names the request in errors.
    drafter: that the engine serves.
    wanted: as in `asks.Ask`.

  Raises:
    UserError: nobody has the name.
  """
  if isinstance(drafter, mixed.Mixed):
    try:
      index = drafter.index(wanted)
    except errors.UserError as error:
      raise errors.UserError(f'request {request_id!r}: {error}') from error
    return mixed.NONE if index == mixed.NOBODY else drafter.names[index]
  if wanted in (None, mixed.NONE):
    return None
  serves = 'decodes plainly' if drafter is None else 'serves one drafter'
  raise errors.UserError(
    f'request {request_id!r}: drafter {wanted!r}, but this engine {serves};'
    " give it drafters by name (drafters.mixed.Mixed), say 'none' or leave the"
    ' choice out'
  )


def names(drafter) -> tuple[str | None, ...]:
  """Whom requests may name; one that is None where there is no choice."""
  return drafter.names if isinstance(drafter, mixed.Mixed) else (None,)


def index(drafter, wanted: str | None) -> int:
  """The choice of a row (`mixed.State.choice`); 0 if there is none to make."""
  return drafter.index(wanted) if isinstance(drafter, mixed.Mixed) else 0
