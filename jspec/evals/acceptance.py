# SPDX-License-Identifier: MIT
"""How many drafts a target accepts, and what that is worth in time.

  tokens_per_round        emitted tokens / rounds; the bonus counts
  num_accepted            accepted drafts / rounds; the bonus does not count
  accepted_if_drafted[j]  rounds that accepted draft j / rounds that drafted it
  accepted_per_round[j]   rounds that accepted draft j / all rounds (joint: a
                          draft is only accepted behind accepted ones)

Draft 0 is the first one. Only emitted tokens count: what a stop id or the
budget cut off was never accepted. With K drafts a perfect drafter has rates of
1 and K + 1 tokens a round; a useless one has rates of 0 and 1 token a round.
A rate over nothing is None in JSON and n/a in the table, never 1 or 0.

Acceptance is not speed, so the same prompts are also decoded plainly in the
same process. An answer that repeats itself (`repetition`) is easy to draft and
says nothing about the drafter: it is named and left out of all these numbers.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from jspec import conversation, loading
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import prompts as prompts_lib
from jspec.evals import repetition, settings

_WARM_UP_TOKENS = 4


def run(
  loaded: loading.LoadedTarget,
  drafter: Any,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  *,
  num_rows: int = 8,
  drafter_name: str | None = None,
  against_plain: bool = True,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Decodes the prompts with the drafter, and plainly for the speed.

  Args:
    loaded: the target.
    drafter: the drafter; None measures plain decoding.
    prompts: whose turns are answered; those with a `domain` are also summed up
      by it.
    params: for all prompts; each gets its own seed (`conversation.seeded`).
    num_rows: answers decoded at the same time.
    drafter_name: for the report; None takes the class name.
    against_plain: also decode plainly, for the ratio of speeds.
    on_progress: called with (answers done, answers in all), in each run.

  Returns:
    JSON values; `table` shows them.
  """
  described = settings.describe(loaded, prompts, params, num_rows)
  max_len = conversation.needed_len(loaded, prompts, params.max_tokens)
  requests = conversation.seeded(params, len(prompts))
  decoder = _decoder(loaded, drafter, num_rows, max_len)
  replies = conversation.answer(
    loaded, decoder, prompts, requests, on_progress=on_progress
  )
  domain = {prompt.id: prompts_lib.domain_of(prompt) for prompt in prompts}
  request = {p.id: r for p, r in zip(prompts, requests, strict=True)}
  repeating = [r for r in replies if repetition.repeats(r.output.tokens)]
  clean = [r for r in replies if not repetition.repeats(r.output.tokens)]
  drafted = _Timed(decoder, decoder.timing.decode_s, replies)
  if repeating and clean:
    drafted = _time(decoder, clean, request, on_progress)
  del decoder  # its cache, before the next one is made
  plain = None
  if drafter is None:
    plain = drafted
  elif against_plain and clean:
    decoder = _decoder(loaded, None, num_rows, max_len)
    plain = _time(decoder, clean, request, on_progress)
  return {
    'eval': 'acceptance',
    'settings': described,
    'drafter': drafter_name or _name(drafter),
    'num_draft_tokens': getattr(drafter, 'num_draft_tokens', 0),
    'overall': summarize(clean),
    'domains': {
      name: summarize([r for r in clean if domain[r.id] == name])
      for name in sorted(set(domain.values()) - {''})
    },
    'repeating': [[r.id, r.turn] for r in repeating],
    'overall_with_repeating': summarize(replies),
    'speed': _speed(clean, drafted, plain),
  }
