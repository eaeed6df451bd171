# SPDX-License-Identifier: MIT
"""`Rows`: the device's rows, and whose they are when a result comes back.

A launch is planned before the one in flight has come back, so a result can be
late: its row was taken away, perhaps given to somebody else. Each time a row
becomes free its epoch grows. A launch names the epoch it runs a row in, and a
result whose epoch has passed is nobody's.
"""

import heapq


class Rows:
  """Row numbers 0 .. num_rows - 1; the lowest free one is given first."""

  def __init__(self, num_rows: int):
    self._epochs = [0] * num_rows
    self._free = list(range(num_rows))

  @property
  def num_free(self) -> int:
    """Rows that nobody has."""
    return len(self._free)

  def take(self) -> int:
    """A free row."""
    return heapq.heappop(self._free)

  def release(self, row: int) -> None:
    """Frees a row and ends its epoch."""
    if row in self._free:
      raise ValueError(f'row {row} released, but it is free')
    self._epochs[row] += 1
    heapq.heappush(self._free, row)

  def epoch(self, row: int) -> int:
    """How often the row was freed."""
    return self._epochs[row]

  def is_current(self, row: int, epoch: int) -> bool:
    """Whether a result of that epoch still belongs to who has the row."""
    return self._epochs[row] == epoch
