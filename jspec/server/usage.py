# SPDX-License-Identifier: MIT
"""`usage`: tokens of prompts and answers, and of drafts where that is asked.

OpenAI has two names for drafts, the accepted and the rejected ones of a
prediction; ours stand beside them. Prompt tokens count once a prompt, however
many answers it has; cached ones are those that its first answer found.
"""

from collections.abc import Sequence
from typing import Any

from jspec.server import answering
from jspec.server.protocol import common
from jspec.text import tokenizer as tokenizer_lib


def of(
  answers: Sequence[answering.Answer],
  num_prompt_tokens: int,
  speculative: common.Speculative | None,
  *,
  num_choices: int = 1,
  num_reasoning: int | None = None,
) -> dict[str, Any]:
  """The object.

  Args:
    answers: of all prompts, those of a prompt together.
    num_prompt_tokens: of all prompts.
    speculative: what the request says of it.
    num_choices: answers of each prompt.
    num_reasoning: tokens of reasoning, where that is known.
  """
  num_tokens = sum(answer.num_tokens for answer in answers)
  found = {
    'prompt_tokens': num_prompt_tokens,
    'completion_tokens': num_tokens,
    'total_tokens': num_prompt_tokens + num_tokens,
    'prompt_tokens_details': {
      'cached_tokens': sum(a.num_cached for a in answers[::num_choices])
    },
  }
  details = {}
  if num_reasoning is not None:
    details['reasoning_tokens'] = num_reasoning
  if speculative is not None and speculative.details:
    drafted = sum(answer.num_drafted for answer in answers)
    accepted = sum(answer.num_accepted for answer in answers)
    details |= {
      'accepted_prediction_tokens': accepted,
      'rejected_prediction_tokens': drafted - accepted,
      'drafted': drafted,
      'accepted': accepted,
      'rounds': sum(answer.num_rounds for answer in answers),
    }
  if details:
    found['completion_tokens_details'] = details
  return found


def notes(
  name: str,
  answers: Sequence[answering.Answer],
  num_prompt_tokens: int,
  *,
  prompts: Sequence[str] | None,
) -> dict[str, Any]:
  """What the log says of a request; texts only where `prompts` are given."""
  told = {
    'id': name,
    'prompt_tokens': num_prompt_tokens,
    'completion_tokens': sum(answer.num_tokens for answer in answers),
    # None: it was ended before.
    'finish_reasons': [answer.finish_reason for answer in answers],
    'drafted': sum(answer.num_drafted for answer in answers),
    'accepted': sum(answer.num_accepted for answer in answers),
    'rounds': sum(answer.num_rounds for answer in answers),
  }
  if prompts is not None:
    told |= {
      'prompts': list(prompts),
      'answers': [answer.text for answer in answers],
    }
  return told


def num_reasoning(
  tokenizer: tokenizer_lib.Tokenizer,
  answers: Sequence[tuple[answering.Answer, str]],
) -> int:
  """Tokens of the reasoning of all answers: never more than they have."""
  return sum(
    min(len(tokenizer.encode(reasoning)), answer.num_tokens)
    for answer, reasoning in answers
    if reasoning
  )
