# SPDX-License-Identifier: MIT
"""Seconds that launches took on the device, as far as the host could see.

  device   ...n-1 |  n  |          | n+1 |
  host        send n  wait n-1  send n+1  wait n

A launch begins when the one before it ends, or when it is sent, whichever is
later; it ends when the wait for it ends, if it was running by then. What the
host did not see is not guessed:

  it had ended before the wait      no end, and no begin of the next, unless
                                    that was sent afterwards
  nobody waited (only prompts)      no begin of the next
"""

import math


class LaunchTimes:
  """Takes launches in the order in which they come back."""

  def __init__(self):
    self._last_end = 0.0
    self._saw_end = True

  def came_back(
    self, sent_s: float, ended_s: float, *, saw_end: bool
  ) -> float | None:
    """Seconds of a launch; None where its begin or end was not seen.

    Args:
      sent_s: when it was sent, or later when nothing was on its way.
      ended_s: when the wait for it ended.
      saw_end: whether it was running when the wait began.
    """
    saw_begin = math.isfinite(self._last_end) and (
      self._saw_end or sent_s >= self._last_end
    )
    began_s = max(sent_s, self._last_end)
    self._last_end, self._saw_end = ended_s, saw_end
    return ended_s - began_s if saw_begin and saw_end else None

  def missed(self) -> None:
    """A launch came back for which nobody waited."""
    self._last_end, self._saw_end = math.inf, False
