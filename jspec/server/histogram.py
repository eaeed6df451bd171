# SPDX-License-Identifier: MIT
"""`Histogram`: counts by bounds, cheap enough for every token.

A launch brings several tokens to many streams at once, and each counts; that is
one `bisect` for all the tokens of an event.
"""

import bisect
from collections.abc import Sequence

# Seconds; from a fast launch to a client that has given up.
SECONDS = (
  *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
  *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0),
)


class Histogram:
  """How often values up to each bound came.

  Attributes:
    total: of all values.
  """

  def __init__(self, bounds: Sequence[float] = SECONDS):
    self._bounds = tuple(bounds)
    self._counts = [0] * (len(bounds) + 1)
    self.total = 0.0

  def observe(self, value: float, times: int = 1) -> None:
    """Counts a value, as if it had come several times."""
    self._counts[bisect.bisect_left(self._bounds, value)] += times
    self.total += value * times

  def buckets(self) -> list[tuple[str, int]]:
    """Bounds and the values up to each, as Prometheus wants them."""
    found, seen = [], 0
    names = (*map(str, self._bounds), '+Inf')
    for name, count in zip(names, self._counts, strict=True):
      seen += count
      found.append((name, seen))
    return found
