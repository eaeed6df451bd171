# SPDX-License-Identifier: MIT
"""`Scheduler`: which request runs where, on which pages, in the next launch.

The host is one launch behind:

  host    plan 1      plan 2     observe 1  plan 3     observe 2  plan 4
  device     | launch 1             | launch 2             | launch 3

Before each launch every row that decodes owns pages for all that may be
committed by then, whatever the depth of its drafts turns out to be:

  rows = min(known + in flight + num_rounds * (max_drafts + 1),
             prompt + max_tokens)

A row that cannot have them waits for pages that launches in flight hold, or
takes those of rows that are served after it (priority, then arrival), which are
preempted; the rest of the rows that need pages wait behind it. So the first row
always goes on, and since every request fits the pool alone, all of them finish.
Requests are admitted in the same order and never overtake.

No clock, no threads, no device: the same calls give the same plans.
"""

import bisect
import operator
from collections.abc import Hashable, Iterable

from jspec import errors
from jspec.serve import admission, requests, rows
from jspec.serve import chunks as chunks_lib
from jspec.serve import config as config_lib
from jspec.serve import flights as flights_lib
from jspec.serve import ledger as ledger_lib
from jspec.serve import plan as plan_lib

_RANK = operator.attrgetter('rank')


class Scheduler:
  """Plans launches and takes in what they did.

  Every plan is launched and observed, in order; one that is empty needs no
  launch, but is observed all the same. Any number of launches may be in flight.

  Attributes:
    config: the sizes.
    ledger: pages and prefix cache.
    num_dropped: results that came too late.
    num_preemptions: rows taken away for lack of pages.
  """

  def __init__(self, config: config_lib.SchedulerConfig):
    self.config = config
    self.ledger = ledger_lib.Ledger(config.num_pages, config.page_size)
    self.num_dropped = self.num_preemptions = 0
    self._alive = {}  # id -> Progress
    self._waiting = []  # by rank
    self._running = {}  # row -> Progress
    self._rows = rows.Rows(config.max_rows)
    self._freed, self._preempted = [], []  # since the last plan
    self._flights = flights_lib.Flights()
    self._num_submitted = 0

  @property
  def num_waiting(self) -> int:
    """Requests without a row."""
    return len(self._waiting)

  @property
  def num_running(self) -> int:
    """Requests with a row."""
    return len(self._running)

  @property
  def num_planned(self) -> int:
    """Launches planned so far."""
    return self._flights.num_planned

  @property
  def num_in_flight(self) -> int:
    """Launches planned and not observed."""
    return len(self._flights)

  def submit(self, request: requests.Request) -> requests.Progress:
    """Lets a request wait for its turn.

    Returns:
      Its progress, whose `max_tokens` is cut to the context.

    Raises:
      UserError: the prompt is empty or too long, nothing is to be emitted, or
        the id is in use.
    """
    if request.id in self._alive:
      raise errors.UserError(
        f'request {request.id!r} is running already; give each request an id of'
        ' its own'
      )
    progress = requests.Progress(
      request=request,
      arrival=self._num_submitted,
      max_tokens=admission.max_tokens(request, self.config),
    )
    self._num_submitted += 1
    self._alive[request.id] = progress
    self._wait(progress)
    return progress

  def cancel(self, request_id: Hashable) -> bool:
    """Ends a request at once; False if it is not alive.

    Its pages are cached no further than its prompt was.
    """
    progress = self._alive.get(request_id)
    if progress is None:
      return False
    if progress.is_waiting:
      self._waiting.remove(progress)
      progress.move(requests.State.CANCELLED)
    else:
      self._release(progress, requests.State.CANCELLED)
    del self._alive[request_id]
    return True

  def plan(self) -> plan_lib.Plan:
    """The next launch; `plan.Plan` says what it does in which order."""
    short = self._reserve()
    # Pages that rows are waiting for are not given to others.
    admitted = [] if short or self._preempted else self._admit()
    chunks = chunks_lib.plan(
      self._by_rank(), self.config.max_prefill_tokens, self.config.chunk_sizes
    )
    decoding = [
      progress
      for row, progress in sorted(self._running.items())
      if progress.is_decoding and row not in short
    ]
    decodes = [self._decode(progress) for progress in decoding]
    self._take_off(chunks, decodes)
    freed, self._freed = tuple(self._freed), []
    preempted, self._preempted = tuple(self._preempted), []
    return plan_lib.Plan(
      launch=self._flights.num_planned,
      freed=freed,
      preempted=preempted,
      admitted=tuple(admitted),
      chunks=tuple(chunks),
      decodes=tuple(decodes),
      num_rounds=self.config.num_rounds if decodes else 0,
    )

  def observe(
    self, launch: int, results: Iterable[plan_lib.Result]
  ) -> list[plan_lib.Output]:
    """Takes in a launch that came back.

    Args:
      launch: its number, the oldest not observed.
      results: one for each row of its `decodes`.

    Returns:
      What each request emitted. Results of rows that were taken away meanwhile
      are dropped.

    Raises:
      ValueError: the results are not those of the plan.
    """
    outputs = []
    for row, flight, result in self._flights.land(launch, results):
      if not self._rows.is_current(row, flight.epoch):
        self.num_dropped += result is not None
        continue
      progress = flight.progress
      if result is None or not result.has_failed:
        self._confirm(progress, flight.num_prefilled)
      if result is not None:
        progress.in_flight -= flight.max_tokens
        progress.emit(result.tokens)
        outputs.append(self._output(progress, result))
    self.ledger.come_back(launch)
    return outputs

  def is_current(self, decode: plan_lib.Decode) -> bool:
    """Whether the row is still that of the request it was planned for."""
    return self._rows.is_current(decode.row, decode.epoch)

  def tokens(self, decode: plan_lib.Decode) -> list[int]:
    """The text of a row that is current, as far as it is known."""
    return self._running[decode.row].tokens

  def check(self) -> None:
    """Raises ValueError where pages, rows and requests do not add up."""
    self.ledger.check((p.pages, p.num_rows) for p in self._running.values())
    for row, progress in self._running.items():
      name = f'request {progress.request.id!r} on row {row}'
      in_flight = self._flights.max_tokens(row, progress.epoch)
      known = len(progress.tokens) - 1
      needed = min(known + in_flight, progress.max_rows)
      owned = len(progress.pages) * self.config.page_size
      if progress.row != row or progress.in_flight != in_flight:
        raise ValueError(f'{name}: row or tokens in flight are wrong')
      if owned < needed:
        raise ValueError(f'{name} owns {owned} rows but may write {needed}')
    if self._waiting != sorted(self._waiting, key=_RANK):
      raise ValueError('the waiting requests are out of order')
    if len(self._running) + self._rows.num_free != self.config.max_rows:
      raise ValueError('rows that run and free rows do not add up')
    if len(self._alive) != len(self._waiting) + len(self._running):
      raise ValueError('requests alive, waiting and running do not add up')

  # ---- planning

  def _reserve(self):
    """Gives rows that decode the pages they need; which rows lack them."""
    short = set()
    for progress in self._by_rank():
      # Rows that are served later may have been preempted meanwhile.
      if not progress.is_decoding:
        continue
      missing = self._missing(progress)
      if missing and (short or not self._grow(progress, missing)):
        short.add(progress.row)
    return short

  def _missing(self, progress):
    needed = self.ledger.num_pages(self._rows_to_own(progress))
    return max(needed - len(progress.pages), 0)

  def _rows_to_own(self, progress):
    known = len(progress.tokens) - 1
    most = known + progress.in_flight + self._launch_tokens
    return min(most, progress.max_rows)

  @property
  def _launch_tokens(self):
    return self.config.num_rounds * (self.config.max_drafts + 1)

  def _grow(self, progress, missing):
    """Gets a row more pages, from rows that are served later if need be."""
    while True:
      pages = self.ledger.grow(missing)
      if pages is not None:
        progress.pages += pages
        return True
      if missing <= self.ledger.num_available + self.ledger.num_held:
        return False
      last = self._by_rank()[-1]
      if last is progress:
        return False
      self._preempt(last)

  def _preempt(self, progress):
    self._keep(progress)
    self._release(progress, requests.State.WAITING)
    self._wait(progress)
    self._preempted.append(progress.request.id)
    self.num_preemptions += 1

  def _admit(self):
    admitted = []
    while self._waiting and self._rows.num_free:
      progress = self._waiting[0]
      space = self.ledger.admit(
        progress.tokens,
        self._rows_to_own(progress),
        progress.request.namespace,
      )
      if space is None:
        break
      pages, num_cached = space
      del self._waiting[0]
      if not progress.num_preemptions:
        self.ledger.trie.record(len(progress.tokens), num_cached)
      row = self._rows.take()
      progress.admit(row, self._rows.epoch(row), pages, num_cached)
      self._running[row] = progress
      admitted.append(
        plan_lib.Admission(
          row=row,
          epoch=progress.epoch,
          request_id=progress.request.id,
          tokens=tuple(progress.tokens),
          max_tokens=progress.num_remaining,
          pages=pages,
          num_cached=num_cached,
          params=progress.request.params,
        )
      )
    return admitted

  def _decode(self, progress):
    return plan_lib.Decode(
      row=progress.row,
      epoch=progress.epoch,
      request_id=progress.request.id,
      pages=progress.pages,
      max_tokens=min(self._launch_tokens, progress.num_remaining),
      max_rows=progress.max_rows,
      num_tokens=len(progress.tokens),
      params=progress.request.params,
    )

  def _take_off(self, chunks, decodes):
    """Notes what the launch does to each row, until it is observed."""
    max_tokens = dict.fromkeys(chunk.row for chunk in chunks)
    max_tokens |= {decode.row: decode.max_tokens for decode in decodes}
    flights = {}
    for row, tokens in max_tokens.items():
      progress = self._running[row]
      progress.in_flight += tokens or 0
      flights[row] = flights_lib.Flight(
        progress=progress,
        epoch=progress.epoch,
        num_prefilled=progress.num_prefilled,
        max_tokens=tokens,
      )
    self._flights.leave(flights)
    for flight in flights.values():
      flight.progress.last_launch = self._flights.num_planned

  # ---- observing

  def _confirm(self, progress, num_prefilled):
    """Counts rows that are prefilled; a whole prompt goes into the cache."""
    if progress.num_rows < num_prefilled:
      progress.num_rows = num_prefilled
      if num_prefilled == progress.prefill_len:
        self._keep(progress)

  def _output(self, progress, result):
    reason = None
    if result.has_failed:
      reason = 'failed'
    elif result.is_stopped:
      reason = 'stop'
    elif not progress.num_remaining:
      reason = 'length'
    if reason is not None:
      if not result.has_failed:
        self._keep(progress)
      self._release(progress, requests.State.FINISHED)
      del self._alive[progress.request.id]
    return plan_lib.Output(
      request_id=progress.request.id,
      tokens=tuple(result.tokens),
      finish_reason=reason,
      num_cached=progress.num_cached,
    )

  # ---- rows

  def _by_rank(self):
    return sorted(self._running.values(), key=_RANK)

  def _wait(self, progress):
    bisect.insort(self._waiting, progress, key=_RANK)

  def _keep(self, progress):
    self.ledger.keep(
      progress.tokens,
      progress.pages,
      progress.num_rows,
      progress.request.namespace,
    )

  def _release(self, progress, state):
    row = progress.row
    self._rows.release(row)
    del self._running[row]
    self._freed.append(row)
    is_in_flight = progress.last_launch > self._flights.num_observed
    self.ledger.retire(
      progress.pages,
      progress.num_rows,
      progress.last_launch if is_in_flight else None,
    )
    progress.leave(state)
