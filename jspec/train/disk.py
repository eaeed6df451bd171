# SPDX-License-Identifier: MIT
"""A disk that takes no more is one line, with what mends it."""

import contextlib
import errno
import pathlib
from collections.abc import Iterator

from jspec import errors

_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


@contextlib.contextmanager
def explained(folder: pathlib.Path | str) -> Iterator[None]:
  """Says what to do where a write within finds no room.

  Files of a run appear whole or not at all, and its checkpoints stay.

  Raises:
    UserError: naming the file, or the folder where the error names none.
  """
  try:
    yield
  except OSError as error:
    if error.errno not in _REFUSED:
      raise
    raise errors.UserError(
      f'cannot write {error.filename or f"in {folder}"} ({error.strerror}):'
      ' make room there; the same command then goes on from the newest'
      ' checkpoint'
    ) from error
