# SPDX-License-Identifier: MIT
"""POST /v1/completions: goes on with texts."""

import dataclasses
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette import responses
from starlette.requests import Request

from jspec.serve import asks
from jspec.server import (
  answering,
  asking,
  bodies,
  completion_text,
  details,
  logs,
  replies,
  routing,
  streams,
)
from jspec.server import served as served_lib
from jspec.server import usage as usage_lib
from jspec.server.protocol import completions as protocol


@dataclasses.dataclass(frozen=True)
class _Wanted:
  """A body in the engine's terms.

  Attributes:
    prompts: for each answer.
    asks: for each answer.
    texts: of the prompts, for each answer.
    num_prompt_tokens: of all different prompts.
  """

  prompts: list[list[int]]
  asks: list[asks.Ask]
  texts: list[str]
  num_prompt_tokens: int


async def create(
  request: Request, served: served_lib.Served
) -> responses.Response:
  """Answers a request."""
  body = await bodies.read(request, protocol.CompletionRequest, served.limits)
  served.check_model(body.model)
  wanted = await _wanted(served, body)
  reply = _Reply(served, body, wanted)
  logs.note(request.scope, reply.notes)
  stream = routing.send(
    served,
    reply.id,
    wanted.prompts,
    wanted.asks,
    model=body.model,
    speculative=body.speculative,
    texts=wanted.texts,
  )
  logs.note(request.scope, stream.times)
  return await replies.send(
    request,
    stream,
    reply,
    served.limits,
    is_streamed=bool(body.stream),
  )


async def _wanted(served, body):
  prompts = body.prompt
  if isinstance(prompts, str) or isinstance(prompts[0], int):
    prompts = [prompts]
  num_choices = body.n or 1
  seeds = asking.seeds(served, body.seed, num_choices)
  all_prompts, all_asks, texts, num_prompt_tokens = [], [], [], 0
  for prompt in prompts:
    # Who sends ids knows what to do with them, and the drafter too.
    texts += [prompt if isinstance(prompt, str) else ''] * num_choices
    if isinstance(prompt, str):
      prompt = await asking.encode(served, prompt, add_special=True)
    room = asking.room(served, prompt, 'prompt')
    num_prompt_tokens += len(prompt)
    for seed in seeds:
      all_prompts.append(prompt)
      all_asks.append(
        asking.ask(
          served,
          body,
          seed=seed,
          max_tokens=asking.max_tokens(body.max_tokens, room),
          num_logprobs=body.logprobs,
          num_prompt_logprobs=body.logprobs if body.echo else None,
        )
      )
  return _Wanted(all_prompts, all_asks, texts, num_prompt_tokens)


class _Reply:
  """The reply to one request."""

  def __init__(self, served, body, wanted):
    self.id = f'cmpl-{secrets.token_hex(12)}'
    self._served, self._body, self._wanted = served, body, wanted
    self._head = {
      'id': self.id,
      'object': 'text_completion',
      'created': served.now,
      'model': served.names[0],
    }
    self._answers = [
      answering.Answer(
        served,
        index,
        prompt=prompt,
        stops=asking.stop_strings(body),
        include_stop=body.include_stop_str_in_output,
        tells_tokens=body.logprobs is not None or details.wanted(body),
        is_empty=body.max_tokens == 0,
      )
      for index, prompt in enumerate(wanted.prompts)
    ]
    self._texts = [
      completion_text.Text(
        served, prompt, num_logprobs=body.logprobs, is_echoed=bool(body.echo)
      )
      for prompt in wanted.prompts
    ]

  async def whole(self, stream: streams.Stream) -> dict[str, Any]:
    """Waits for the end."""
    parts = [[] for _ in self._answers]
    async for pieces in answering.read(stream, self._answers):
      for piece in pieces:
        parts[piece.index].append(self._texts[piece.index].take(piece))
    choices = [
      {
        'index': index,
        'text': ''.join(text for text, _ in parts[index]),
        'logprobs': completion_text.joined([said for _, said in parts[index]]),
        'finish_reason': answer.finish_reason,
        **details.of(self._body, answer, stream.routes[index]),
      }
      for index, answer in enumerate(self._answers)
    ]
    return {**self._head, 'choices': choices, 'usage': self._usage()}

  async def events(self, stream: streams.Stream) -> AsyncIterator[bytes]:
    """Tells what comes, as it comes."""
    options = self._body.stream_options
    has_usage = options is not None and bool(options.include_usage)
    rest = {'usage': None} if has_usage else {}
    async for pieces in answering.read(stream, self._answers):
      chunks = []
      for piece in pieces:
        text, logprobs = self._texts[piece.index].take(piece)
        if not (text or logprobs or piece.num_tokens or piece.finish_reason):
          continue
        choice = {
          'index': piece.index,
          'text': text,
          'logprobs': logprobs,
          'finish_reason': piece.finish_reason,
          **details.of(self._body, piece, stream.routes[piece.index]),
        }
        chunks.append(
          replies.event({**self._head, 'choices': [choice], **rest})
        )
      yield b''.join(chunks)
    if has_usage:
      yield replies.event({**self._head, 'choices': [], 'usage': self._usage()})

  def notes(self) -> dict[str, Any]:
    """What the log says."""
    return usage_lib.notes(
      self.id,
      self._answers,
      self._wanted.num_prompt_tokens,
      prompts=self._served.texts(self._wanted.prompts),
    )

  def _usage(self):
    return usage_lib.of(
      self._answers,
      self._wanted.num_prompt_tokens,
      self._body.speculative,
      num_choices=self._body.n or 1,
    )
