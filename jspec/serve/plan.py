# SPDX-License-Identifier: MIT
"""What the host asks of one launch, and what it hears back.

A launch does, in this order:

  freed      rows that no longer run
  admitted   rows that start: `num_cached` rows lie in their first pages
  chunks     prompt tokens that become rows, no logits needed
  decodes    up to `num_rounds` rounds of the rows listed, and only those

A row whose last chunk is in a launch decodes in the same launch. The last token
of a prompt is never in a chunk: it is the first anchor.
"""

import dataclasses
from collections.abc import Hashable
from typing import Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Admission:
  """A row that starts, or starts again after a preemption.

  Attributes:
    row: the device's row.
    epoch: of the row.
    request_id: whose it is.
    tokens: the prompt and, after a preemption, what was emitted: the last one
      is the anchor.
    max_tokens: tokens it may still emit.
    pages: page ids, in order of position.
    num_cached: tokens whose rows are in the first pages, a whole number of
      pages and at most len(tokens) - 2.
    params: of the request.
  """

  row: int
  epoch: int
  request_id: Hashable
  tokens: tuple[int, ...]
  max_tokens: int
  pages: tuple[int, ...]
  num_cached: int
  params: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chunk:
  """Prompt tokens that become rows `start`, `start + 1`, ... of a row.

  Attributes:
    row: the device's row.
    epoch: of the row.
    start: rows before the chunk.
    tokens: at most `size` of them.
    size: the compiled length that runs it.
    next_token: the token behind the chunk.
    is_last: whether nothing but the anchor is left.
  """

  row: int
  epoch: int
  start: int
  tokens: tuple[int, ...]
  size: int
  next_token: int
  is_last: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decode:
  """A row that takes part in the rounds.

  Attributes:
    row: the device's row.
    epoch: of the row.
    request_id: whose it is.
    pages: page ids, in order of position; more than in the last launch if more
      are needed, and never others.
    max_tokens: most tokens the launch may commit for the row.
    max_rows: rows the row never exceeds.
    num_tokens: of prompt and answer, as far as they are known.
    params: of the request.
  """

  row: int
  epoch: int
  request_id: Hashable
  pages: tuple[int, ...]
  max_tokens: int
  max_rows: int
  num_tokens: int
  params: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
  """One launch.

  Attributes:
    launch: its number; launches come back in order.
    freed: rows that stopped since the last plan, preempted ones included.
    preempted: requests among them that wait again.
    admitted: rows that start.
    chunks: prefill, at most one a row.
    decodes: rows of the rounds, by row.
    num_rounds: most rounds; running fewer is always allowed.
  """

  launch: int
  freed: tuple[int, ...]
  preempted: tuple[Hashable, ...]
  admitted: tuple[Admission, ...]
  chunks: tuple[Chunk, ...]
  decodes: tuple[Decode, ...]
  num_rounds: int

  @property
  def is_empty(self) -> bool:
    """Whether the device has nothing to run; such a plan is observed too."""
    return not self.chunks and not self.decodes

  @property
  def places(self) -> tuple[list[int], list[tuple[int, ...]]]:
    """Rows that decode, and the pages of each."""
    rows = [decode.row for decode in self.decodes]
    return rows, [decode.pages for decode in self.decodes]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """What a launch did for one row of its `decodes`.

  Attributes:
    row: the device's row.
    epoch: as in the plan.
    tokens: committed by the launch. All of them, unless `is_stopped`: then up
      to the stop.
    is_stopped: the request is complete (a stop id, a stop string). That its
      budget is spent need not be told.
    has_failed: the row's numbers went wrong; `tokens` are those before that.
      The request ends and no more of it is cached.
  """

  row: int
  epoch: int
  tokens: tuple[int, ...]
  is_stopped: bool = False
  has_failed: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output:
  """What a launch means for a request.

  Attributes:
    request_id: whose tokens these are.
    tokens: emitted now.
    finish_reason: 'stop', 'length' or 'failed', None while it goes on.
    num_cached: prompt tokens that were found in the prefix cache.
  """

  request_id: Hashable
  tokens: tuple[int, ...]
  finish_reason: str | None
  num_cached: int
