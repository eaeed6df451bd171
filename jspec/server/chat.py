# SPDX-License-Identifier: MIT
"""POST /v1/chat/completions: the next turn of a conversation."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette import responses
from starlette.requests import Request

from jspec.server import (
  answering,
  asking,
  bodies,
  chat_logprobs,
  details,
  logs,
  reader,
  replies,
  routing,
  streams,
  turns,
)
from jspec.server import served as served_lib
from jspec.server import usage as usage_lib
from jspec.server.protocol import chat as protocol
from jspec.text.formats import calls


async def create(
  request: Request, served: served_lib.Served
) -> responses.Response:
  """Answers a request."""
  body = await bodies.read(request, protocol.ChatRequest, served.limits)
  served.check_model(body.model)
  turn = await turns.of(
    served,
    [message.model_dump(exclude_none=True) for message in body.messages],
    tools=turns.Tools(
      [tool.model_dump(exclude_none=True) for tool in body.tools or ()],
      _choice(body.tool_choice),
      body.parallel_tool_calls is not False,
    ),
    response_format=body.response_format,
    variables=body.chat_template_kwargs,
  )
  wanted = body.max_completion_tokens or body.max_tokens
  seeds = asking.seeds(served, body.seed, body.n or 1)
  asked = [
    asking.ask(
      served,
      body,
      seed=seed,
      max_tokens=asking.max_tokens(wanted, turn.room),
      num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
      constraint=turn.constraint,
    )
    for seed in seeds
  ]
  reply = _Reply(served, body, turn, len(asked))
  logs.note(request.scope, reply.notes)
  stream = routing.send(
    served,
    reply.id,
    [turn.prompt] * len(asked),
    asked,
    model=body.model,
    speculative=body.speculative,
    texts=[turn.last_text] * len(asked),
  )
  logs.note(request.scope, stream.times)
  return await replies.send(
    request,
    stream,
    reply,
    served.limits,
    is_streamed=bool(body.stream),
  )


def _choice(wanted):
  if isinstance(wanted, protocol.NamedTool):
    return wanted.function.name
  return wanted or 'auto'


class _Choice:
  """One choice as it comes."""

  def __init__(self, served, body, turn, index):
    self.answer = answering.Answer(
      served,
      index,
      stops=asking.stop_strings(body),
      include_stop=body.include_stop_str_in_output,
      keep=turn.form.marks,
      tells_tokens=bool(body.logprobs) or details.wanted(body),
    )
    self._reader = reader.Reader(
      turn.form, is_parallel=body.parallel_tool_calls is not False
    )
    self._tokenizer = served.target.tokenizer
    self._stop_ids = served.target.stop_ids
    self._num_top = (body.top_logprobs or 0) if body.logprobs else None
    self.content = self.reasoning = ''
    self.calls = []
    self.logprobs = None if self._num_top is None else []

  def reason(self, ended: str | None) -> str | None:
    """Why it ended, as a chat says it; None: it goes on."""
    return 'tool_calls' if ended == 'stop' and self.calls else ended

  def take(self, piece: answering.Piece) -> tuple[dict, list | None]:
    """Returns the delta of a piece, and its log-probabilities."""
    is_final = piece.finish_reason is not None
    told = self._reader.push(piece.text, is_final=is_final)
    delta = {}
    if told.reasoning:
      self.reasoning += told.reasoning
      delta['reasoning_content'] = told.reasoning
    if told.content:
      self.content += told.content
      delta['content'] = told.content
    if told.tool_calls:
      delta['tool_calls'] = [self._call(call) for call in told.tool_calls]
    logprobs = None
    if self._num_top is not None:
      logprobs = chat_logprobs.entries(
        self._tokenizer, piece.settled, self._num_top, self._stop_ids
      )
      self.logprobs += logprobs
    return delta, logprobs

  def message(self) -> dict[str, Any]:
    """The whole turn."""
    found = {
      'role': 'assistant',
      'content': self.content if self.content or not self.calls else None,
      'refusal': None,
    }
    if self.reasoning:
      found['reasoning_content'] = self.reasoning
    if self.calls:
      found['tool_calls'] = self.calls
    return found

  def _call(self, call: calls.ToolCall) -> dict[str, Any]:
    """A call, or more of the last one, for a delta."""
    if not call.name:
      self.calls[-1]['function']['arguments'] += call.arguments
      more = {'arguments': call.arguments}
      return {'index': len(self.calls) - 1, 'function': more}
    made = {
      'id': f'call_{secrets.token_hex(12)}',
      'type': 'function',
      'function': {'name': call.name, 'arguments': call.arguments},
    }
    self.calls.append(made)
    told = {**made, 'function': dict(made['function'])}
    return {'index': len(self.calls) - 1, **told}


class _Reply:
  """The reply to one request."""

  def __init__(self, served, body, turn, num_choices):
    self.id = f'chatcmpl-{secrets.token_hex(12)}'
    self._served, self._body, self._turn = served, body, turn
    self._head = {
      'id': self.id,
      'object': 'chat.completion',
      'created': served.now,
      'model': served.names[0],
    }
    self._choices = [
      _Choice(served, body, turn, index) for index in range(num_choices)
    ]
    self._answers = [choice.answer for choice in self._choices]

  async def whole(self, stream: streams.Stream) -> dict[str, Any]:
    """Waits for the end."""
    async for pieces in answering.read(stream, self._answers):
      for piece in pieces:
        self._choices[piece.index].take(piece)
    choices = [
      {
        'index': index,
        'message': choice.message(),
        'logprobs': chat_logprobs.whole(choice.logprobs),
        'finish_reason': choice.reason(choice.answer.finish_reason),
        **details.of(self._body, choice.answer, stream.routes[index]),
      }
      for index, choice in enumerate(self._choices)
    ]
    return {**self._head, 'choices': choices, 'usage': self._usage()}

  async def events(self, stream: streams.Stream) -> AsyncIterator[bytes]:
    """Tells what comes, as it comes."""
    options = self._body.stream_options
    has_usage = options is not None and bool(options.include_usage)
    rest = {'usage': None} if has_usage else {}
    head = {**self._head, 'object': 'chat.completion.chunk'}
    unseen = set(range(len(self._choices)))
    async for pieces in answering.read(stream, self._answers):
      chunks = []
      for piece in pieces:
        choice = self._choices[piece.index]
        delta, logprobs = choice.take(piece)
        if piece.index in unseen:
          unseen.discard(piece.index)
          delta = {'role': 'assistant', 'content': '', **delta}
        reason = choice.reason(piece.finish_reason)
        told = details.of(self._body, piece, stream.routes[piece.index])
        if not (delta or logprobs or told or reason):
          continue
        choice = {
          'index': piece.index,
          'delta': delta,
          'logprobs': chat_logprobs.whole(logprobs),
          'finish_reason': reason,
          **told,
        }
        chunks.append(replies.event({**head, 'choices': [choice], **rest}))
      yield b''.join(chunks)
    if has_usage:
      yield replies.event({**head, 'choices': [], 'usage': self._usage()})

  def notes(self) -> dict[str, Any]:
    """What the log says."""
    return usage_lib.notes(
      self.id,
      self._answers,
      len(self._turn.prompt),
      prompts=self._served.texts([self._turn.prompt]),
    )

  def _usage(self):
    return usage_lib.of(
      self._answers,
      len(self._turn.prompt),
      self._body.speculative,
      num_choices=len(self._choices),
      num_reasoning=usage_lib.num_reasoning(
        self._served.target.tokenizer,
        [(choice.answer, choice.reasoning) for choice in self._choices],
      ),
    )
