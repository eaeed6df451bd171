# SPDX-License-Identifier: MIT
"""What a launch takes besides its rounds, and times without it.

  launch of one round    overhead + round
  launch of four         overhead + round + round + round + round

Forms are tried for one round at a time and run for several. Compared as they
are, whatever is being tried would look slower by most of an overhead, a tenth
of a round of few rows. So all times are made those of whole launches, which
share an overhead out over all their rounds.
"""

import collections
import statistics
from collections.abc import Hashable

NUM_RECENT = 9
ENOUGH = 3  # launches of each length that a difference is believed from


class LaunchOverhead:
  """Learns the overhead from launches that differ in their rounds alone."""

  def __init__(self, num_rounds: int):
    """Knows nothing yet; whole launches have `num_rounds`."""
    self._num_rounds = num_rounds
    self._seconds = {}  # by kind of round and number of rounds

  def record(self, kind: Hashable, num_rounds: int, seconds: float) -> None:
    """Takes in a launch whose rounds were all of one kind."""
    if num_rounds in (1, self._num_rounds):
      recent = self._seconds.setdefault(
        (kind, num_rounds), collections.deque(maxlen=NUM_RECENT)
      )
      recent.append(seconds)

  @property
  def seconds(self) -> float:
    """The overhead; 0 as long as it is not known.

    Of the kind with the shortest rounds, where it stands out most.
    """
    best, least = 0.0, float('inf')
    for (kind, num_rounds), one in self._seconds.items():
      whole = self._seconds.get((kind, self._num_rounds), ())
      if num_rounds != 1 or min(len(one), len(whole)) < ENOUGH:
        continue
      short, long = statistics.median(one), statistics.median(whole)
      a_round = (long - short) / max(self._num_rounds - 1, 1)
      if short < least:
        least = short
        best = min(max(short - a_round, 0.0), short)
    return best

  def as_whole(self, num_rounds: int, seconds: float) -> float:
    """What the rounds would have taken as part of a whole launch."""
    share = max(1 - num_rounds / self._num_rounds, 0.0)
    return seconds - min(share * self.seconds, seconds / 2)
