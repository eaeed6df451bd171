# SPDX-License-Identifier: MIT
"""Reads of a source that fail are tried again, counted and limited.

A network file system fails now and then and works a moment later. A record that
is damaged fails every time, so it costs some tries and then ends the run.
"""

import time
from collections.abc import Callable
from typing import Any

# What another try cannot mend.
_FINAL = (
  FileNotFoundError,
  IsADirectoryError,
  NotADirectoryError,
  PermissionError,
)


class Retried:
  """A random access source like the one it reads from.

  Attributes:
    documents: those of the source.
    num_retries: reads that had to be tried again, so far.
  """

  def __init__(
    self,
    source: Any,
    max_retries: int,
    *,
    pause_s: float = 0.2,
    sleep: Callable[[float], None] = time.sleep,
  ):
    """Wraps `source`.

    Args:
      source: has `documents`, a length and elements, as `pipeline` reads it.
      max_retries: tries of one element after the first; 0 for none.
      pause_s: before the first of them; each further pause is twice as long.
      sleep: pauses for so many seconds.
    """
    self.documents = source.documents
    self.num_retries = 0
    self._source = source
    self._max_retries = max_retries
    self._pause_s = pause_s
    self._sleep = sleep

  def __len__(self) -> int:
    return len(self._source)

  def __getitem__(self, number: int) -> Any:
    for retry in range(self._max_retries):
      try:
        return self._source[number]
      except Exception as error:
        if not may_pass(error):
          raise
        self.num_retries += 1
        self._sleep(self._pause_s * 2**retry)
    return self._source[number]


def may_pass(error: BaseException) -> bool:
  """Whether a read that raised this may work a moment later.

  So it is with what a file system says, itself or (`RuntimeError`) through the
  reader of ArrayRecord files, also as the cause of an error for people.
  """
  while error is not None:
    if isinstance(error, OSError | RuntimeError):
      return not isinstance(error, _FINAL)
    error = error.__cause__
  return False
