# SPDX-License-Identifier: MIT
"""`Driver`: one thread owns the engine, an event loop owns the clients.

  event loop   open -> inbox        deliver: one call for all that a step said,
                         |             ^     however many streams it is for
  thread       sleep | take inbox | step | take inbox | step ...

Nothing of the engine is touched outside the thread, which sleeps while nobody
wants anything. Requests wait in the engine, but only so many: `open` refuses
the next. A request may want several answers; they are accepted together, and
their events come through one stream.

If the engine raises, every stream fails at once with its reason, and so does
whatever is opened later.
"""

import asyncio
import collections
import concurrent.futures
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jspec import errors
from jspec.serve import asks
from jspec.server import streams

_LOG = logging.getLogger('jspec.server')


class Busy(Exception):
  """The queue is full."""


class Unavailable(Exception):
  """The engine is not there: it starts, stops or broke."""


class Driver:
  """Runs an engine for an event loop.

  Attributes:
    engine: None until it is ready. Only its counts may be read from elsewhere;
      `call` does anything else.
    failure: what the engine raised, at its start or later; None while it is
      well.
    is_draining: whether new requests are refused since the server stops.
    num_refused: requests that the full queue refused.
    num_prompt_tokens: of answers that were accepted.
    num_ended: answers by why they ended: 'stop', 'length', 'failed', or 'abort'
      for those that nobody wanted any more.
    on_event: called in the event loop with every event, its stream, the index
      of its answer there and the time, before the stream has it; for metrics.
    clock: seconds, for the times of streams.
  """

  def __init__(
    self,
    make: Callable[[], Any],
    *,
    max_open: int,
    clock: Callable[[], float] = time.monotonic,
  ):
    """Does nothing yet; see `start`.

    Args:
      make: makes the engine, in the thread; may take minutes.
      max_open: most answers at a time, running and waiting.
      clock: as above.
    """
    self.engine = None
    self.failure = None
    self.is_draining = False
    self.num_refused = self.num_prompt_tokens = 0
    self.num_ended = collections.Counter()
    self.on_event = None
    self.clock = clock
    self._make, self._max_open = make, max_open
    self._inbox = collections.deque()
    self._news = threading.Event()
    self._is_stopping = False
    self._open = {}  # The engine's id -> its stream and index. In the loop.
    self._ids = {}  # The same, the other way round.
    self._loop = None
    self._ready = None
    self._idle = None
    self._thread = threading.Thread(
      target=self._run, name='jspec-engine', daemon=True
    )

  # --- the event loop's side

  def start(self) -> asyncio.Future:
    """Starts the thread, for the running event loop.

    Returns:
      A future that ends when the engine is ready, with what was raised if it
      could not be made.
    """
    self._loop = asyncio.get_running_loop()
    self._ready = self._loop.create_future()
    self._idle = asyncio.Event()
    self._idle.set()
    self._thread.start()
    return self._ready

  def check_there(self) -> None:
    """Raises `Unavailable` unless requests are taken."""
    if self.failure is not None:
      raise Unavailable('the engine broke; the server must be started again')
    if self.engine is None:
      raise Unavailable('the engine starts; try again later')
    if self.is_draining:
      raise Unavailable('the server stops; try again later')

  @property
  def is_ready(self) -> bool:
    """Whether requests are taken."""
    try:
      self.check_there()
    except Unavailable:
      return False
    return True

  @property
  def num_open(self) -> int:
    """Answers that were accepted and have not ended."""
    return len(self._open)

  def open(
    self,
    name: str,
    prompts: Sequence[Sequence[int]],
    wanted: Sequence[asks.Ask],
  ) -> streams.Stream:
    """Sends a request to the engine; `accepted` of the stream waits for it.

    Args:
      name: of the request, unique; it is in what the engine says of it.
      prompts: token ids, for each answer.
      wanted: what is asked of each.

    Raises:
      UserError: more answers than there is ever place for.
      Busy: more than there is place for now.
      Unavailable: the engine starts, stops or broke.
    """
    self.check_there()
    if len(wanted) > self._max_open:
      raise errors.UserError(
        f'{len(wanted)} answers are asked for at once and this server takes at'
        f' most {self._max_open}; ask for fewer'
      )
    if self.num_open + len(wanted) > self._max_open:
      self.num_refused += 1
      raise Busy
    stream = streams.Stream(len(wanted), self.clock(), self._cancel)
    ids = [f'{name}/{index}' for index in range(len(wanted))]
    for index, answer in enumerate(ids):
      self._open[answer] = stream, index
      self._ids[stream, index] = answer
    self.num_prompt_tokens += sum(map(len, prompts))
    self._idle.clear()
    self._put(self._submit, stream, ids, list(prompts), list(wanted))
    return stream

  async def call(self, function: Callable[[Any], Any]) -> Any:
    """Calls `function(engine)` in the thread, between two steps.

    Raises:
      Unavailable: the engine starts or broke.
    """
    if self.engine is None or self.failure is not None:
      self.check_there()
    done = concurrent.futures.Future()
    self._put(self._call, function, done)
    return await asyncio.wrap_future(done)

  async def drain(self, grace_s: float) -> None:
    """Refuses new requests, and ends those that take longer than `grace_s`."""
    self.is_draining = True
    try:
      await asyncio.wait_for(self._idle.wait(), grace_s)
    except TimeoutError:
      self.fail_open()

  def fail_open(self) -> None:
    """Ends every answer that is open; whoever waits for one is told."""
    self._fail_open(Unavailable('the server stops; try again later'))

  async def ready(self) -> None:
    """Waits until the engine is there; raises what kept it from that."""
    await asyncio.shield(self._ready)

  def stop(self, timeout_s: float = 10.0) -> bool:
    """Ends the thread; False if the engine did not return in time."""
    self._is_stopping = True
    self._news.set()
    if self._thread.is_alive():
      self._thread.join(timeout_s)
    return not self._thread.is_alive()

  def _put(self, *command):
    self._inbox.append(command)
    self._news.set()

  def _cancel(self, stream, index, reason):
    name = self._forget(stream, index)
    if name is not None:
      self.num_ended[reason] += 1
      self._put(self._drop, name)

  def _forget(self, stream, index):
    name = self._ids.pop((stream, index), None)
    self._open.pop(name, None)
    if name is not None and stream.on_end is not None:
      stream.on_end(index)
    if not self._open:
      self._idle.set()
    return name

  # --- called in the event loop, by the thread

  def _is_made(self, engine):
    self.engine = engine
    if not self._ready.done():
      self._ready.set_result(None)

  def _acknowledge(self, stream, problem):
    if problem is None:
      stream.accept()
      return
    for index in sorted(stream.live):
      self._forget(stream, index)
    stream.fail(problem)

  def _deliver(self, events):
    now = self.clock()
    told = {}
    for event in events:
      found = self._open.get(event.request_id)
      if found is None:  # Cancelled meanwhile.
        continue
      stream, index = found
      if self.on_event is not None:
        self.on_event(stream, index, event, now)
      stream.push(index, event, now)
      told[stream] = None
      if event.finish_reason is not None:
        self.num_ended[event.finish_reason] += 1
        self._forget(stream, index)
    for stream in told:
      stream.wake()

  def _broke(self, error):
    self.failure = error
    if not self._ready.done():
      self._ready.set_exception(error)
    self._fail_open(
      Unavailable('the engine broke; the server must be started again')
    )

  def _fail_open(self, problem):
    for stream, index in list(self._ids):
      self._cancel(stream, index, 'abort')
      stream.fail(problem)

  # --- the thread

  def _run(self):
    try:
      engine = self._make()
      self._post(self._is_made, engine)
      while not self._is_stopping:
        if not engine.has_work:
          self._news.wait()
        self._news.clear()
        while self._inbox:
          command, *of = self._inbox.popleft()
          command(engine, *of)
        if engine.has_work:
          events = engine.step()
          if events:
            self._post(self._deliver, events)
    except BaseException as error:
      if not isinstance(error, errors.UserError):
        _LOG.exception('the engine broke')
      self._post(self._broke, error)
    for command, *of in self._inbox:
      if command == self._call:
        of[-1].cancel()

  def _post(self, function, *of):
    try:
      self._loop.call_soon_threadsafe(function, *of)
    except RuntimeError:  # The loop is closed: nobody is there any more.
      self._is_stopping = True

  def _submit(self, engine, stream, ids, prompts, wanted):
    problem = None
    try:
      for name, prompt, ask in zip(ids, prompts, wanted, strict=True):
        engine.submit(prompt, ask, request_id=name)
    except Exception as error:
      if not isinstance(error, errors.UserError):
        _LOG.exception('the engine could not take a request')
      problem = error
      for name in ids:
        engine.cancel(name)
    self._post(self._acknowledge, stream, problem)

  def _drop(self, engine, name):
    engine.cancel(name)

  def _call(self, engine, function, done):
    try:
      done.set_result(function(engine))
    except Exception as error:
      done.set_exception(error)
