# SPDX-License-Identifier: MIT
"""Batches read ahead in a thread that has an owner.

  thread: next(batches) -> queue of a few -> __next__ in the training thread

An exception in the thread arrives with its cause, at the next batch or, by the
owner, before. Who waits long for a batch is told so. The state is that of the
batch that was handed out last, whatever was read since.
"""

import copy
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

from jspec import supervised

# The thread's last words: it has ended, well or by an exception.
_END = object()


class Ahead(Iterator):
  """An iterator over what another one gives, read ahead.

  Attributes:
    wait_seconds: how long the last batch was waited for.
  """

  def __init__(
    self,
    batches: Any,
    size: int,
    *,
    owner: supervised.Owner | None = None,
    starving_s: float = 30.0,
    on_message: Callable[[str], None] = print,
  ):
    """Reads nothing yet: the thread starts with the first batch.

    Args:
      batches: an iterator with `get_state` and `set_state`.
      size: how many batches are read ahead.
      owner: of the thread; what fails elsewhere ends a wait here too.
      starving_s: seconds of waiting for a batch after which it is said, and
        said again each time they have doubled.
      on_message: takes what a person should read.
    """
    self.wait_seconds = 0.0
    self._batches = batches
    self._queue: queue.Queue = queue.Queue(maxsize=size)
    self._owner = owner or supervised.Owner()
    self._starving_s = starving_s
    self._on_message = on_message
    self._state = copy.deepcopy(batches.get_state())
    self._task: supervised.Task | None = None
    self._is_stopping = False
    self._is_closed = False

  def __next__(self) -> Any:
    if self._is_closed:
      raise ValueError('this stream of batches was closed')
    if self._task is None:
      self._task = self._owner.start('reading of batches', self._read)
    entry = self._take()
    if entry is _END:
      # For whoever asks again: the thread is gone, so nobody else puts it.
      self._queue.put(_END)
      self._task.wait()
      raise StopIteration
    batch, self._state = entry
    return batch

  def get_state(self) -> Any:
    """The state behind the last batch that was handed out."""
    return self._state

  def set_state(self, state: Any) -> None:
    """Goes to where `get_state` was called."""
    if not self._stop():
      raise RuntimeError('the thread that reads batches does not end')
    self._batches.set_state(state)
    self._state = copy.deepcopy(self._batches.get_state())

  def close(self) -> None:
    """Ends the thread; a read that never returns is left behind."""
    self._is_closed = True
    if not self._stop():
      self._on_message('data: a read that does not return was left behind')

  def _take(self):
    began = time.monotonic()
    say_at = self._starving_s
    while True:
      try:
        entry = self._queue.get(timeout=supervised.LOOK_S)
        self.wait_seconds = time.monotonic() - began
        return entry
      except queue.Empty:
        self._owner.check()
        waited = time.monotonic() - began
        if waited >= say_at:
          say_at = 2 * waited
          self._on_message(
            f'data: starving: no batch for {waited:.0f} s; what the data is'
            ' read from is slow or hangs'
          )

  def _read(self):
    try:
      while not self._is_stopping:
        try:
          batch = next(self._batches)
        except StopIteration:
          return
        self._queue.put((batch, copy.deepcopy(self._batches.get_state())))
    finally:
      self._queue.put(_END)

  def _stop(self, timeout_s=5.0):
    """Ends the thread and forgets what it has read; says whether it ended."""
    self._is_stopping = True
    deadline = time.monotonic() + timeout_s
    while self._task is not None and time.monotonic() < deadline:
      self._forget()  # It may wait for room.
      if self._task.join(0.01):
        self._task = None
    self._forget()
    self._is_stopping = self._task is not None
    return not self._is_stopping

  def _forget(self):
    try:
      while True:
        self._queue.get_nowait()
    except queue.Empty:
      pass
