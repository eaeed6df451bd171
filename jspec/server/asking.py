# SPDX-License-Identifier: MIT
"""From the fields of a body to what the engine is asked.

A choice has a seed of its own, made from the request's and the place of the
choice, so that several differ and all of them come again. A request without a
seed draws one, so no two share their randomness.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from jspec import errors
from jspec.decode import options as options_lib
from jspec.decode import sampling
from jspec.serve import asks, structured
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.server.protocol import common

# Longer texts are worked on beside the event loop.
_SHORT_TEXT = 4096


async def beside(work: Callable[[], Any], size: int) -> Any:
  """Returns `work()`; beside the event loop if that is long.

  Args:
    work: what is done with some text.
    size: characters of it.
  """
  return work() if size < _SHORT_TEXT else await asyncio.to_thread(work)


async def encode(
  served: served_lib.Served, text: str, *, add_special: bool
) -> list[int]:
  """The ids of a text."""
  encoded = served.target.tokenizer.encode
  return await beside(lambda: encoded(text, add_special=add_special), len(text))


def room(served: served_lib.Served, prompt: Sequence[int], param: str) -> int:
  """Tokens that an answer to the prompt has room for.

  Raises:
    ApiError: none, with both numbers; or the prompt is empty, or has ids that
      the target lacks.
  """
  if not prompt:
    raise api_errors.ApiError(
      400, f'{param} has no token; write a text', param=param
    )
  if max(prompt) >= served.vocab_size:
    raise api_errors.ApiError(
      400,
      f'{param} holds token id {max(prompt)} and the vocabulary has'
      f' {served.vocab_size}; use the tokenizer of this model (/tokenize)',
      param=param,
    )
  if len(prompt) >= served.context_len:
    raise api_errors.ApiError(
      400,
      f"this model's maximum context length is {served.context_len} tokens, of"
      f' prompt and answer, and {param} has {len(prompt)} tokens; shorten it',
      param=param,
      code='context_length_exceeded',
    )
  return served.context_len - len(prompt)


def max_tokens(wanted: int | None, num_room: int) -> int:
  """Tokens to ask for: what fits, or less; never none, which no engine does."""
  return num_room if wanted is None else max(1, min(wanted, num_room))


def seed_of(seed: int, choice: int) -> int:
  """The seed of a choice: of the first it is the request's, if that fits.

  Args:
    seed: any integer.
    choice: its place, from 0.

  Returns:
    32 bits.
  """
  if choice == 0 and 0 <= seed < 2**32:
    return seed
  digest = hashlib.sha256(f'{seed}/{choice}'.encode()).digest()
  return int.from_bytes(digest[:4], 'little')


def seeds(
  served: served_lib.Served, seed: int | None, num_choices: int
) -> list[int]:
  """The seeds of all choices of a request."""
  if seed is None:
    return [served.seeds.getrandbits(32) for _ in range(num_choices)]
  return [seed_of(seed, choice) for choice in range(num_choices)]


def params(
  served: served_lib.Served,
  body: common.Sampled,
  *,
  seed: int,
  max_tokens: int,
  stop_token_ids: Sequence[int] = (),
  ignore_eos: bool = False,
) -> sampling.SamplingParams:
  """How tokens are drawn; OpenAI's defaults where a field is left out."""
  if stop_token_ids and max(stop_token_ids) >= served.vocab_size:
    raise api_errors.ApiError(
      400,
      f'stop_token_ids holds {max(stop_token_ids)} and the vocabulary has'
      f' {served.vocab_size}; use the tokenizer of this model (/tokenize)',
      param='stop_token_ids',
    )
  stop_ids = () if ignore_eos else served.target.stop_ids
  return sampling.SamplingParams(
    temperature=_or(body.temperature, 1.0),
    top_k=max(_or(body.top_k, 0), 0),
    top_p=_or(body.top_p, 1.0),
    min_p=_or(body.min_p, 0.0),
    seed=seed,
    max_tokens=max_tokens,
    stop_ids=tuple(dict.fromkeys((*stop_ids, *stop_token_ids))),
  )


def repetition(body: common.Sampled) -> options_lib.LogitOptions:
  """How logits are changed, where OpenAI's endpoint cannot say it."""
  return options_lib.LogitOptions(
    repetition_penalty=_or(body.repetition_penalty, 1.0)
  )


def options(body: common.Generated) -> options_lib.LogitOptions:
  """How logits are changed."""
  bias = {int(token): value for token, value in (body.logit_bias or {}).items()}
  return options_lib.LogitOptions(
    repetition_penalty=_or(body.repetition_penalty, 1.0),
    presence_penalty=_or(body.presence_penalty, 0.0),
    frequency_penalty=_or(body.frequency_penalty, 0.0),
    logit_bias=tuple(bias.items()),
    min_tokens=_or(body.min_tokens, 0),
  )


def drafting(
  served: served_lib.Served, wanted: common.Speculative | None
) -> dict[str, Any]:
  """The fields of `asks.Ask` about drafts."""
  if wanted is None:
    return {}
  return {
    'drafter': served.drafter(wanted.method),
    'max_drafts': wanted.max_draft_tokens,
    'policy': served.policy(wanted.depth_policy),
  }


def stop_strings(body: common.Generated) -> tuple[str, ...]:
  """The stop strings of a request."""
  if body.stop is None:
    return ()
  return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


async def check_constraint(
  served: served_lib.Served,
  constraint: structured.Constraint | None,
  param: str,
) -> None:
  """Compiles a grammar beside the engine, which then has it at once.

  Raises:
    ApiError: there is no compiler, or it refuses the grammar.
  """
  if constraint is None:
    return
  if served.compiler is None:
    raise api_errors.ApiError(
      400,
      f'{param}: this server has no structured output; start it with'
      ' llguidance installed (the extra structured)',
      param=param,
    )
  try:
    await asyncio.to_thread(served.compiler.matcher, constraint)
  except errors.UserError as error:
    raise api_errors.ApiError(
      400, f'{param}: {error}', param=param, code='invalid_value'
    ) from error


def ask(
  served: served_lib.Served,
  body: common.Generated,
  *,
  seed: int,
  max_tokens: int,
  num_logprobs: int | None,
  num_prompt_logprobs: int | None = None,
  constraint: structured.Constraint | None = None,
) -> asks.Ask:
  """What the engine is asked for one answer.

  Raises:
    UserError, ApiError: a value that cannot be.
  """
  return asks.Ask(
    params=params(
      served,
      body,
      seed=seed,
      max_tokens=max_tokens,
      stop_token_ids=body.stop_token_ids or (),
      ignore_eos=body.ignore_eos,
    ),
    options=options(body),
    num_logprobs=num_logprobs,
    num_prompt_logprobs=num_prompt_logprobs,
    constraint=constraint,
    **drafting(served, body.speculative),
  )


def _or(value, default):
  return default if value is None else value
