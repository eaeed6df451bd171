# SPDX-License-Identifier: MIT
"""How training goes, in one line at the foot of a terminal.

  120/3000 [##------] 1,950 tokens/s  ETA 42 min  loss 3.41  tokens/round 1.24

Messages go above it. The line is redrawn by a thread, so that it also moves
while a program compiles or prompts are decoded; it goes to stderr and messages
to stdout, as they do without it.
"""

import collections
import shutil
import statistics
import sys
import threading
import time
from types import TracebackType
from typing import Any

_REDRAW_S = 0.2
_WIPE = '\r\033[K'
_WIDTH = 16
# What a rate is the median of, and what it takes for a time of arrival.
_NUM_ROWS = 20


class Bar:
  """The line, from the first message on; a context manager."""

  def __init__(self, num_steps: int):
    """A run of so many steps, of which none is known yet."""
    self._num_steps = num_steps
    self._step = 0
    self._row: dict[str, Any] = {}
    self._rates = collections.deque(maxlen=_NUM_ROWS)
    self._first: tuple[int, float] | None = None
    self._eta_s: float | None = None
    self._lock = threading.Lock()
    self._finished = threading.Event()
    self._thread = threading.Thread(target=self._redraw, daemon=True)

  def __enter__(self) -> 'Bar':
    self._began = time.monotonic()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    if self._thread.ident is not None:
      self._finished.set()
      self._thread.join()
      print(_WIPE, end='', file=sys.stderr, flush=True)

  def update(self, step: int, row: dict[str, Any]) -> None:
    """Takes in the row of a step."""
    now = time.monotonic()
    with self._lock:
      self._step, self._row = step, row
      if 'tokens_per_s' in row:
        self._rates.append(float(row['tokens_per_s']))
      if self._first is None:
        # The first step compiled: time is counted from its end.
        self._first = (step, now)
      else:
        begun, at = self._first
        per_step = (now - at) / (step - begun)
        self._eta_s = per_step * (self._num_steps - step)

  def say(self, line: str) -> None:
    """Prints a message above the line."""
    with self._lock:
      print(_WIPE, end='', file=sys.stderr, flush=True)
      print(line, flush=True)
      # Not before: loading the target has a line of its own.
      if self._thread.ident is None:
        self._thread.start()

  def line(self, seconds: float) -> str:
    """The text after so many seconds."""
    if not self._step:
      return f'starting  {seconds:.0f} s'
    filled = _WIDTH * self._step // self._num_steps
    parts = [
      f'{self._step}/{self._num_steps}'
      f' [{"#" * filled}{"-" * (_WIDTH - filled)}]'
    ]
    if self._rates:
      parts.append(f'{statistics.median(self._rates):,.0f} tokens/s')
    if self._eta_s is not None:
      parts.append(f'ETA {_duration(self._eta_s)}')
    for name, label in (('loss', 'loss'), ('tokens_per_round', 'tokens/round')):
      if name in self._row:
        parts.append(f'{label} {float(self._row[name]):.2f}')
    return '  '.join(parts)

  def _redraw(self):
    while not self._finished.wait(_REDRAW_S):
      with self._lock:
        text = self.line(time.monotonic() - self._began)
        # A longer one would begin a second line, which nothing wipes.
        text = text[: shutil.get_terminal_size().columns - 1]
        print(f'{_WIPE}{text}', end='', file=sys.stderr, flush=True)


def _duration(seconds):
  if seconds < 90:
    return f'{seconds:.0f} s'
  if seconds < 90 * 60:
    return f'{seconds / 60:.0f} min'
  return f'{seconds / 3600:.1f} h'
