# SPDX-License-Identifier: MIT
"""Whether drafting happens: one short request before traffic says so.

A drafter that is loaded and never used looks like plain decoding, only slower.
The request repeats itself, so that a drafter that looks things up finds some.
"""

from typing import Any

from jspec.decode import sampling
from jspec.depth import guard
from jspec.serve import asks

TEXT = 'one two three one two three one two three one two three'
NUM_TOKENS = 16


def why_not(engine: Any, prompt: list[int]) -> str:
  """Why drafting cannot happen, in one line; empty where it did.

  Runs a request and forgets it; its counts stay in the engine's metrics.

  Args:
    engine: that nobody uses yet.
    prompt: ids of `TEXT`.
  """
  if not engine.metrics.num_drafts:
    return 'there is no drafter'
  before = int(engine.metrics.num_drafted.sum())
  pinned, engine.forms.pinned = engine.forms.pinned, guard.FULL
  room = engine.sizes.scheduler.limit - NUM_TOKENS
  engine.submit(
    prompt[: max(room, 1)],
    asks.Ask(params=sampling.SamplingParams(max_tokens=NUM_TOKENS)),
  )
  while engine.has_work:
    engine.step()
  engine.forms.pinned = pinned
  engine.forget_prefixes()
  if engine.metrics.drafter_problem:
    return f'the drafter broke: {engine.metrics.drafter_problem}'
  if int(engine.metrics.num_drafted.sum()) == before:
    return f'no draft was verified in {NUM_TOKENS} tokens'
  return ''
