# SPDX-License-Identifier: MIT
r"""`Request`, what a client wants, and `Progress`, how far it has come.

  waiting ---> prefilling ---> decoding ---> finished
     ^  \___________|______________^ |
     |______________|________________|         all but finished: cancelled

A prompt of one token has nothing to prefill and decodes at once. A request that
is preempted waits again; what it emitted so far becomes part of its prompt.

Tokens and rows: the last token is the anchor and has no row yet, so n tokens
have n - 1 rows once all of them are committed.
"""

import dataclasses
import enum
from collections.abc import Hashable
from typing import Any


class State(enum.Enum):
  """Where a request is."""

  WAITING = 'waiting'
  PREFILLING = 'prefilling'
  DECODING = 'decoding'
  FINISHED = 'finished'
  CANCELLED = 'cancelled'


_NEXT = {
  State.WAITING: {State.PREFILLING, State.DECODING, State.CANCELLED},
  State.PREFILLING: {State.DECODING, State.WAITING, State.CANCELLED},
  State.DECODING: {State.FINISHED, State.WAITING, State.CANCELLED},
  State.FINISHED: set(),
  State.CANCELLED: set(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
  """What a client wants.

  Attributes:
    id: names the request; unique among those alive.
    prompt: token ids.
    max_tokens: most tokens to emit; the scheduler cuts it to what fits.
    priority: smaller numbers are served first and preempted last.
    namespace: whose rows its pages hold: drafter group and version.
    params: the engine's own; the scheduler never looks at it.
  """

  id: Hashable
  prompt: tuple[int, ...]
  max_tokens: int
  priority: int = 0
  namespace: Hashable = None
  params: Any = None


@dataclasses.dataclass(eq=False, kw_only=True)
class Progress:
  """How far a request has come; the scheduler changes it, others read it.

  Attributes:
    request: what is wanted.
    arrival: its place in the order of submission.
    max_tokens: most tokens to emit, cut to the context.
    rank: order of service, the smallest first.
    tokens: the prompt and what was emitted.
    state: where it is.
    row: the device's row, None while it waits.
    epoch: of the row while it has one.
    pages: page ids of the row, in order of position.
    num_cached: prompt tokens whose rows were found when it was first admitted.
    num_prefilled: rows that are found or planned to be prefilled.
    prefill_len: rows to prefill before it decodes.
    num_rows: rows known to be written: those of launches that came back.
    in_flight: most tokens that launches not yet back may commit.
    last_launch: the last launch that runs the row.
    num_preemptions: how often its row was taken away.
  """

  request: Request
  arrival: int
  max_tokens: int
  rank: tuple[int, int] = dataclasses.field(init=False)
  tokens: list[int] = dataclasses.field(init=False)
  state: State = State.WAITING
  row: int | None = None
  epoch: int = -1
  pages: tuple[int, ...] = ()
  num_cached: int = 0
  num_prefilled: int = 0
  prefill_len: int = 0
  num_rows: int = 0
  in_flight: int = 0
  last_launch: int = -1
  num_preemptions: int = 0

  def __post_init__(self):
    self.tokens = list(self.request.prompt)
    self.rank = self.request.priority, self.arrival

  @property
  def num_emitted(self) -> int:
    """Tokens emitted so far."""
    return len(self.tokens) - len(self.request.prompt)

  @property
  def num_remaining(self) -> int:
    """Tokens it may still emit."""
    return self.max_tokens - self.num_emitted

  @property
  def max_rows(self) -> int:
    """Rows that it never exceeds: prompt + max_tokens."""
    return len(self.request.prompt) + self.max_tokens

  @property
  def is_waiting(self) -> bool:
    """Whether it has no row."""
    return self.state is State.WAITING

  @property
  def is_prefilling(self) -> bool:
    """Whether part of its prompt is not planned yet."""
    return self.state is State.PREFILLING

  @property
  def is_decoding(self) -> bool:
    """Whether rounds run it."""
    return self.state is State.DECODING

  def admit(
    self, row: int, epoch: int, pages: tuple[int, ...], num_cached: int
  ) -> None:
    """Takes a row and pages whose first `num_cached` tokens have rows."""
    rest = len(self.tokens) - 1 - num_cached
    self.move(State.PREFILLING if rest else State.DECODING)
    self.row, self.epoch, self.pages = row, epoch, pages
    if not self.num_preemptions:
      self.num_cached = num_cached
    self.num_prefilled = self.num_rows = num_cached
    self.prefill_len = len(self.tokens) - 1
    self.in_flight, self.last_launch = 0, -1

  def prefill(self, num_tokens: int) -> None:
    """Counts a chunk that a launch will run; the last one starts decoding."""
    left = self.prefill_len - self.num_prefilled
    if not self.is_prefilling or not 0 < num_tokens <= left:
      raise ValueError(
        f'request {self.request.id!r} is {self.state.value} with {left} tokens'
        f' to prefill; a chunk of {num_tokens} does not fit'
      )
    self.num_prefilled += num_tokens
    if num_tokens == left:
      self.move(State.DECODING)

  def emit(self, tokens: tuple[int, ...]) -> None:
    """Appends what a launch committed."""
    if not self.is_decoding or len(tokens) > self.num_remaining:
      raise ValueError(
        f'request {self.request.id!r} is {self.state.value} and may emit'
        f' {self.num_remaining} tokens, not {len(tokens)}'
      )
    self.tokens.extend(tokens)
    self.num_rows = len(self.tokens) - 1

  def leave(self, state: State) -> None:
    """Gives the row up: preempted (waiting), finished or cancelled."""
    self.num_preemptions += state is State.WAITING
    self.move(state)
    self.row, self.pages = None, ()
    self.num_rows = self.num_prefilled = self.in_flight = 0

  def move(self, state: State) -> None:
    """Changes the state; ValueError if it cannot follow."""
    if state not in _NEXT[self.state]:
      raise ValueError(
        f'request {self.request.id!r} cannot become {state.value}: it is'
        f' {self.state.value}'
      )
    self.state = state
