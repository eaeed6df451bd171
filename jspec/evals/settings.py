# SPDX-License-Identifier: MIT
"""What a result depends on besides the drafter: runs compare if it is equal."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jspec import errors, loading
from jspec.data import sources
from jspec.decode import sampling
from jspec.evals import prompts as prompts_lib
from jspec.text import chat


def describe(
  loaded: loading.LoadedTarget,
  prompts: Sequence[sources.Prompt],
  params: sampling.SamplingParams,
  num_rows: int,
) -> dict[str, Any]:
  """Settings of a run, as JSON values.

  Raises `UserError` where there is nothing to run.
  """
  if not prompts:
    raise errors.UserError('no prompts to decode: give at least one')
  if num_rows < 1:
    raise errors.UserError(f'num_rows={num_rows}: give 1 or more')
  request = dataclasses.asdict(params)
  return {
    'target': loaded.label,
    'fingerprint': loaded.fingerprint,
    'template': chat.fingerprint(loaded.template),
    'prompts': prompts_lib.digest(prompts),
    'num_prompts': len(prompts),
    'num_turns': sum(len(prompt.turns) for prompt in prompts),
    'num_rows': num_rows,
    **request,
    'stop_ids': list(params.stop_ids),
  }


def name_of(drafter: Any) -> str:
  """A drafter's name where nobody gave one: its class."""
  return 'none' if drafter is None else type(drafter).__name__


def by_reply(values: Sequence[Any], prompts: Sequence[sources.Prompt]) -> list:
  """Repeats each prompt's value for each of its turns, as replies come."""
  pairs = zip(values, prompts, strict=True)
  return [value for value, prompt in pairs for _ in prompt.turns]
