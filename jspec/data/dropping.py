# SPDX-License-Identifier: MIT
"""Bad records: refused, or dropped, counted and limited.

A record is bad if it cannot be read, or if what it says makes no document (a
token of another vocabulary, say). A file that ends too early is never a bad
record: nobody knows what it lacks.
"""

from jspec import errors


def refuse(error: errors.UserError) -> None:
  """Drops nothing."""
  raise error


class Dropped:
  """Lets some bad records be dropped.

  Attributes:
    num: how many were.
    first: what was wrong with the first; None if there was none.
  """

  def __init__(self, allowed: int):
    self.num = 0
    self.first: errors.UserError | None = None
    self._allowed = allowed

  def __call__(self, error: errors.UserError) -> None:
    """Counts a bad record, or raises where there are too many."""
    if not self._allowed:
      raise error
    self.num += 1
    self.first = self.first or error
    if self.num > self._allowed:
      raise errors.UserError(
        f'{error} (bad record {self.num}, data.max_bad_records allows'
        f' {self._allowed}; the first was {self.first})'
      )
