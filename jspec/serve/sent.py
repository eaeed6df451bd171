# SPDX-License-Identifier: MIT
"""What the engine remembers of requests that run and launches on their way."""

import dataclasses
import time
from collections.abc import Hashable
from typing import Any, NamedTuple

from jspec.serve import asks, forms, launch, plan, structured_matcher
from jspec.typing import Array


@dataclasses.dataclass
class Alive:
  """A request until it ends.

  Attributes:
    num_prompt: tokens of its prompt.
    ask: what it wants.
    matcher: where its answer stands in its grammar; None without one.
    drafter: who drafts, by its name in full; None where drafters have none.
    admitted_s: when it first got a row, by `time.monotonic`; None: not yet.
    num_read: prompt tokens whose log-probabilities were sent for. A preemption
      reads them again.
  """

  num_prompt: int
  ask: asks.Ask
  matcher: structured_matcher.Matcher | None = None
  drafter: str | None = None
  admitted_s: float | None = None
  num_read: int = 0

  @property
  def wants_logprobs(self) -> bool:
    """Whether log-probabilities of the answer are wanted."""
    return self.ask.num_logprobs is not None

  def admit(self) -> int:
    """Notes that it has a row; returns the tokens of its prompt."""
    if self.admitted_s is None:
      self.admitted_s = time.monotonic()
    return self.num_prompt

  def span(self, chunk: plan.Chunk) -> tuple[int, int]:
    """First and end of a chunk's rows that are wanted and new."""
    if self.ask.num_prompt_logprobs is None:
      return 0, 0
    # The last prompt token decides the answer, and what was emitted before a
    # preemption is no prompt.
    end = min(chunk.start + len(chunk.tokens), self.num_prompt - 1)
    first = max(chunk.start, self.num_read)
    self.num_read = max(self.num_read, end)
    return first - chunk.start, end - chunk.start


class Read(NamedTuple):
  """Prompt log-probabilities that are on their way.

  Attributes:
    request_id: whose they are.
    alive: that request; another may have its id by the time they are read.
    first: row of the chunk where they begin.
    end: where they end.
    logprobs: of the whole chunk, on the device.
  """

  request_id: Hashable
  alive: Alive
  first: int
  end: int
  logprobs: dict[str, Array]


class Sent(NamedTuple):
  """A launch on its way.

  Attributes:
    plan: what was asked.
    choice: how its rounds draft; None without any.
    report: of its rounds; None without any.
    read: prompt log-probabilities that it finds.
    sent_s: when its rounds were sent.
    is_split: whether the host had a part in them.
  """

  plan: plan.Plan
  choice: forms.Choice | None
  report: launch.Report | None
  read: list[Read]
  sent_s: float
  is_split: bool = False

  @property
  def on_way(self) -> list[Any]:
    """What the host waits for, or nothing if only prompts are read."""
    return [self.report, *(read.logprobs for read in self.read)]
