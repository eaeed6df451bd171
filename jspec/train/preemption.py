# SPDX-License-Identifier: MIT
"""SIGTERM: the machine is taken away soon, so save and leave.

The step in hand is finished and saved; a second SIGTERM ends the process at
once. Outside the main thread, where Python hands out no signals, nothing is
watched.
"""

import signal
import threading

# What a shell reports of a process that a SIGTERM ended.
EXIT_CODE = 128 + signal.SIGTERM


class Watch:
  """Notes a SIGTERM from `start` to `stop`."""

  def __init__(self):
    self.is_asked = False
    self._before = None

  def start(self) -> None:
    """Takes the signal over."""
    if threading.current_thread() is threading.main_thread():
      self._before = signal.signal(signal.SIGTERM, self._note)

  def stop(self) -> None:
    """Gives it back."""
    if self._before is not None:
      signal.signal(signal.SIGTERM, self._before)
      self._before = None

  def _note(self, number, frame):
    del number, frame
    self.is_asked = True
    self.stop()
