# SPDX-License-Identifier: MIT
"""Plain decoding of the engine against another program, in turns.

Both read the same prompts, all of one length, and decode the same number of
greedy tokens a turn, so contexts grow alike:

  turn     ours: some launches, taken in   theirs: as many tokens   ours: ...

The engine rests before the other begins (`Engine.drain`), so neither takes the
other's cores. The ratio is the median over turns of theirs over ours, by
seconds a token; the first turn warms up. Tokens are compared too: equal weights
decode equal tokens until a tie.
"""

import statistics
import time
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from jspec.bench import contenders
from jspec.decode import sampling
from jspec.serve import asks, offline
from jspec.serve import engine as engine_lib

LAUNCHES = 4  # of a turn


@runtime_checkable
class Rival(Protocol):
  """Another program with the same weights."""

  def begin(self, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Reads prompts of equal length; returns the first token of each."""
    ...

  def decode(self, num_tokens: int) -> list[list[int]]:
    """The next tokens of each row."""
    ...


def num_tokens(num_turns: int, num_rounds: int) -> int:
  """Tokens of each row: all turns, a warm-up, and two to spare.

  What is spared is for rows that start while others still read their prompt.
  """
  return (num_turns + 3) * LAUNCHES * num_rounds


def compare(
  engine: engine_lib.Engine,
  rival: Rival,
  texts: Sequence[Sequence[int]],
  *,
  rows: int,
  context: int,
  num_turns: int,
) -> dict[str, Any]:
  """Measures both with so many rows.

  Args:
    engine: has nothing else to do, and room for `context` tokens and
      `num_tokens` more in each row.
    rival: the other.
    texts: token ids of prompts, cut or repeated to the length.
    rows: decoded side by side.
    context: tokens of every prompt.
    num_turns: counted turns.

  Returns:
    JSON values.
  """
  num_rounds = engine.sizes.scheduler.num_rounds
  prompts = [_cut(texts[i % len(texts)], context) for i in range(rows)]
  contenders.put(engine, (contenders.PLAIN,), contenders.PLAIN)
  # Read once before, so that rows find their prompts and start together.
  once = asks.Ask(params=sampling.SamplingParams(max_tokens=1))
  offline.generate(engine, prompts, once)
  params = sampling.SamplingParams(max_tokens=num_tokens(num_turns, num_rounds))
  ids = [engine.submit(prompt, asks.Ask(params=params)) for prompt in prompts]
  answers = {request_id: [] for request_id in ids}

  def take(events):
    for event in events:
      answers[event.request_id] += event.tokens
      if event.finish_reason is not None:
        raise RuntimeError(f'{event.request_id} ended before the comparison')

  while min(len(answer) for answer in answers.values()) == 0:
    take(engine.step())
  take(engine.drain())
  theirs = [[token] for token in rival.begin(prompts)]
  ours_s, theirs_s = [], []
  for _ in range(num_turns + 1):
    before = sum(len(answer) for answer in answers.values())
    began = time.perf_counter()
    for _ in range(LAUNCHES):
      take(engine.step())
    take(engine.drain())
    seconds = time.perf_counter() - began
    decoded = sum(len(answer) for answer in answers.values()) - before
    ours_s.append(seconds * rows / decoded)
    began = time.perf_counter()
    found = rival.decode(LAUNCHES * num_rounds)
    theirs_s.append((time.perf_counter() - began) / (LAUNCHES * num_rounds))
    for row, tokens in zip(theirs, found, strict=True):
      row += tokens
  for request_id in ids:
    engine.cancel(request_id)
  contenders.leave(engine)
  same = [
    _num_equal(answers[request_id], row)
    for request_id, row in zip(ids, theirs, strict=True)
  ]
  ratios = [b / a for a, b in zip(ours_s, theirs_s, strict=True)][1:]
  return {
    'rows': rows,
    'context': context,
    'jspec_ms': 1000 * statistics.median(ours_s[1:]),
    'rival_ms': 1000 * statistics.median(theirs_s[1:]),
    'ratio': statistics.median(ratios),
    'ratios': ratios,
    'num_equal_tokens': same,
    'num_tokens': len(theirs[0]),
  }


def _cut(text, length):
  """The last tokens, repeated as often as needed."""
  return tuple((list(text) * (-(-length // len(text))))[-length:])


def _num_equal(ours, theirs):
  """Tokens before the first that differs."""
  for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
    if a != b:
      return i
  return min(len(ours), len(theirs))


def line(found: dict[str, Any], name: str) -> str:
  """For a person."""
  equal = sum(found['num_equal_tokens'])
  return (
    f'plain over {name}, {found["rows"]} rows: {found["ratio"]:.2f}'
    f' ({found["jspec_ms"]:.1f} ms a step against {found["rival_ms"]:.1f},'
    f' {min(found["ratios"]):.2f} to {max(found["ratios"]):.2f} in'
    f' {len(found["ratios"])} turns; {equal} of'
    f' {found["rows"] * found["num_tokens"]} tokens equal before the first'
    ' difference of each row)'
  )
