# SPDX-License-Identifier: MIT
"""`Stream`: what the answers of one request said, as its handler reads it.

A request may want several answers; events carry the index of theirs. Reading
takes all that has come since the last time, so a reader that is slow gets more
at once and holds nobody up. Everything here runs in the event loop.
"""

import asyncio
import dataclasses
import itertools
from collections.abc import Callable

from jspec.routing import base
from jspec.serve import asks

Batch = list[tuple[int, asks.Event]]


@dataclasses.dataclass
class Progress:
  """How far an answer is.

  Attributes:
    first_s, last_s: when it first and last said something; None: not yet.
    num_first: tokens that came at first.
    num_tokens, num_rounds: that came so far.
    admitted_s: when it got a row; None: nothing came yet.
  """

  first_s: float | None = None
  last_s: float | None = None
  num_first: int = 0
  num_tokens: int = 0
  num_rounds: int = 0
  admitted_s: float | None = None

  def take(self, event: asks.Event, now: float) -> None:
    """Takes in an event."""
    self.num_tokens += len(event.tokens)
    self.num_rounds += event.num_rounds
    if event.tokens:
      if self.first_s is None:
        self.first_s, self.num_first = now, len(event.tokens)
        self.admitted_s = event.admitted_s
      self.last_s = now


class Stream:
  """The answers of one request.

  Attributes:
    live: indices of the answers that have not ended.
    opened_s: when the request came.
    progress: of each answer.
    routes: who drafts for each, and why; None if nobody chose.
    on_end: called with the index of each answer that has ended, or was ended.
  """

  def __init__(
    self,
    num_answers: int,
    opened_s: float,
    cancel: Callable[['Stream', int, str], None],
  ):
    self.live = set(range(num_answers))
    self.opened_s = opened_s
    self.progress = [Progress() for _ in range(num_answers)]
    self.routes: list[base.Choice | None] = [None] * num_answers
    self.on_end = None
    self._cancel = cancel
    self._batch = []
    self._problem = None
    self._waiter = None
    self._is_accepted = False

  async def accepted(self) -> None:
    """Waits until the engine has the request.

    Raises:
      Exception: why it does not, as `read`.
    """
    while not self._is_accepted:
      await self._news()

  async def read(self) -> Batch:
    """What has come since the last time, at least one event.

    Returns:
      Events and the index of their answer; none once all answers have ended.

    Raises:
      UserError: the engine refuses the request.
      Unavailable: the engine broke or stops.
    """
    while not self._batch:
      if self._problem is None and not self.live:
        return []
      await self._news()
    batch, self._batch = self._batch, []
    return batch

  def times(self) -> dict[str, float | None]:
    """When it was opened, and how long its parts took, for the log.

    Seconds until an answer had a row, until the first token, and behind that;
    None for what did not come so far.
    """
    admitted, first, last = (
      [
        value
        for of in self.progress
        if (value := getattr(of, name)) is not None
      ]
      for name in ('admitted_s', 'first_s', 'last_s')
    )
    at = [self.opened_s]
    if admitted:
      at += [min(admitted), min(first), max(last)]
    spans = [round(end - begin, 6) for begin, end in itertools.pairwise(at)]
    spans += [None] * (3 - len(spans))
    parts = zip(('queue_s', 'prefill_s', 'decode_s'), spans, strict=True)
    return {'opened_s': self.opened_s, **dict(parts)}

  def drop(self, index: int, reason: str) -> None:
    """Ends one answer at once; nothing more comes of it."""
    if index in self.live:
      self.live.discard(index)
      self._cancel(self, index, reason)

  def close(self) -> None:
    """Ends all answers at once."""
    for index in sorted(self.live):
      self.drop(index, 'abort')

  # --- the driver's side

  def accept(self) -> None:
    """The engine has the request."""
    self._is_accepted = True
    self.wake()

  def push(self, index: int, event: asks.Event, now: float) -> None:
    """Something came; `wake` lets the reader have it."""
    if index not in self.live:
      return
    self._batch.append((index, event))
    self.progress[index].take(event, now)
    if event.finish_reason is not None:
      self.live.discard(index)

  def fail(self, problem: Exception) -> None:
    """Nothing more will come; the reader is told why after what came."""
    self.live.clear()
    self._problem = problem
    self.wake()

  def wake(self) -> None:
    """Lets the reader have what came."""
    if self._waiter is not None and not self._waiter.done():
      self._waiter.set_result(None)

  async def _news(self):
    if self._problem is not None:
      raise self._problem
    self._waiter = asyncio.get_running_loop().create_future()
    try:
      await self._waiter
    finally:
      self._waiter = None
