# SPDX-License-Identifier: MIT
"""Answers a list of prompts with an engine, all at once."""

from collections.abc import Sequence

from jspec import errors
from jspec.decode import sampling
from jspec.serve import asks
from jspec.serve import engine as engine_lib


def generate(
  engine: engine_lib.Engine,
  prompts: Sequence[Sequence[int]],
  wanted: asks.Ask | Sequence[asks.Ask] | sampling.SamplingParams,
) -> list[list[int]]:
  """Tokens of the answers, in the order of the prompts.

  Args:
    engine: has nothing else to do.
    prompts: token ids.
    wanted: of all prompts, or of each.

  Raises:
    UserError: as `Engine.submit`; or the target gives no finite logit.
  """
  if isinstance(wanted, sampling.SamplingParams):
    wanted = asks.Ask(params=wanted)
  if isinstance(wanted, asks.Ask):
    wanted = [wanted] * len(prompts)
  ids = [
    engine.submit(prompt, ask)
    for prompt, ask in zip(prompts, wanted, strict=True)
  ]
  answers = {request_id: [] for request_id in ids}
  while engine.has_work:
    for event in engine.step():
      answer = answers[event.request_id]
      answer += event.tokens
      if event.finish_reason == 'failed':
        raise errors.UserError(
          f'{event.problem} behind {len(answer)} tokens of an answer; check its'
          " grammar, or the target's weights"
        )
  return [answers[request_id] for request_id in ids]
