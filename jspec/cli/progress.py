# SPDX-License-Identifier: MIT
"""Shows that something is going on while the user waits, on stderr.

  with progress.Wait('decoding', unit='tokens') as wait:
    work(on_progress=wait.update)        # wait.update(done, total)

A terminal shows one line that is redrawn, from the second second on, and wiped
at the end. Anything else (a log, a pipe) gets a line every ten seconds. The
line comes from a thread, so it also moves while a program compiles.
"""

import sys
import threading
import time
from types import TracebackType

_PATIENCE_S = 2.0
_REDRAW_S = 0.2
_LOG_S = 10.0
_FRAMES = '|/-\\'


class Wait:
  """A wait with a name, and a count where one is known."""

  def __init__(self, what: str, unit: str = ''):
    self._what = what
    self._unit = unit
    self._done, self._total = 0, 0
    self._finished = threading.Event()
    self._thread = threading.Thread(target=self._show, daemon=True)

  def update(self, done: int, total: int = 0) -> None:
    """Sets the count; a total of 0 means unknown."""
    self._done, self._total = done, total

  def say(self, what: str) -> None:
    """Changes the name of what is waited for."""
    self._what = what

  def __enter__(self) -> 'Wait':
    self._start = time.monotonic()
    self._thread.start()
    return self

  def __exit__(
    self,
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
  ) -> None:
    self._finished.set()
    self._thread.join()

  def line(self, seconds: float) -> str:
    """The text after so many seconds: `decoding  120/512 tokens  4 s`."""
    parts = [self._what]
    if self._total:
      parts.append(f'{self._done}/{self._total} {self._unit}'.rstrip())
    elif self._done:
      parts.append(f'{self._done} {self._unit}'.rstrip())
    return '  '.join([*parts, f'{seconds:.0f} s'])

  def _show(self):
    is_terminal = sys.stderr.isatty()
    pause = _REDRAW_S if is_terminal else _LOG_S
    frame, is_drawn = 0, False
    while not self._finished.wait(pause):
      seconds = time.monotonic() - self._start
      if not is_terminal:
        print(self.line(seconds), file=sys.stderr, flush=True)
      elif seconds > _PATIENCE_S:
        mark = _FRAMES[frame % len(_FRAMES)]
        print(
          f'\r\033[K{mark} {self.line(seconds)}',
          end='',
          file=sys.stderr,
          flush=True,
        )
        frame, is_drawn = frame + 1, True
    if is_drawn:
      print('\r\033[K', end='', file=sys.stderr, flush=True)
