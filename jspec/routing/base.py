# SPDX-License-Identifier: MIT
"""`Router`: which drafter drafts for a request, and why.

Every drafter gives the same answer; they differ in how fast. So a router may
be wrong, and learn from what requests reached.
"""

import dataclasses
from typing import Protocol, runtime_checkable


@dataclasses.dataclass(frozen=True)
class Request:
  """What a router may look at.

  Attributes:
    model: name of the model that was asked for.
    drafter: that the request itself names; None: it leaves the choice.
    text: of the prompt; for a conversation its last message.
  """

  model: str
  drafter: str | None
  text: str


@dataclasses.dataclass(frozen=True)
class Choice:
  """Who drafts.

  Attributes:
    drafter: its name; None: the engine's first.
    why: in a few words, for the report.
    group: what it was chosen for; results of one group teach nothing about
      another.
  """

  drafter: str | None
  why: str
  group: str = ''


@dataclasses.dataclass(frozen=True)
class Result:
  """What a request reached.

  Attributes:
    num_tokens: that were answered.
    seconds: from the first of them to the last.
    num_rounds: that they took.
  """

  num_tokens: int
  seconds: float
  num_rounds: int


@runtime_checkable
class Router(Protocol):
  """Chooses, and hears how it went."""

  def choose(self, request: Request) -> Choice | None:
    """Who drafts; None: somebody else may decide."""

  def observe(self, choice: Choice, result: Result) -> None:
    """Takes in what a request reached that was routed so.

    Once for every choice, also where nothing came of it.
    """
