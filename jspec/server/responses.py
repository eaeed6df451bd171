# SPDX-License-Identifier: MIT
"""POST /v1/responses: one answer as items, whole or as typed events."""

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
  chat_logprobs,
  logs,
  reader,
  replies,
  responses_input,
  responses_items,
  routing,
  streams,
  turns,
)
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.server import usage as usage_lib
from jspec.server.protocol import chat as chat_protocol
from jspec.server.protocol import responses as protocol


async def create(
  request: Request, served: served_lib.Served
) -> responses.Response:
  """Answers a request."""
  body = await bodies.read(request, protocol.ResponsesRequest, served.limits)
  served.check_model(body.model)
  turn = await turns.of(
    served,
    responses_input.messages(body.input, body.instructions),
    tools=turns.Tools(
      [_tool(tool) for tool in body.tools or ()],
      _choice(body.tool_choice),
      body.parallel_tool_calls is not False,
    ),
    response_format=_format(body.text),
    param='input',
  )
  (seed,) = asking.seeds(served, None, 1)
  asked = asks.Ask(
    params=asking.params(
      served,
      body,
      seed=seed,
      max_tokens=asking.max_tokens(body.max_output_tokens, turn.room),
    ),
    options=asking.repetition(body),
    num_logprobs=(body.top_logprobs or 0) if body.include else None,
    constraint=turn.constraint,
    **asking.drafting(served, body.speculative),
  )
  reply = _Reply(served, body, turn)
  logs.note(request.scope, reply.notes)
  stream = routing.send(
    served,
    reply.id,
    [turn.prompt],
    [asked],
    model=body.model,
    speculative=body.speculative,
    texts=[turn.last_text],
  )
  logs.note(request.scope, stream.times)
  return await replies.send(
    request,
    stream,
    reply,
    served.limits,
    is_streamed=bool(body.stream),
    end=b'',
    failed=reply.failed,
  )


def _choice(wanted):
  return (
    wanted.name
    if isinstance(wanted, protocol.NamedTool)
    else (wanted or 'auto')
  )


def _tool(tool):
  function = tool.model_dump(exclude={'type'}, exclude_none=True)
  return {'type': 'function', 'function': function}


def _format(text):
  wanted = None if text is None else text.format
  if isinstance(wanted, protocol.JsonSchemaFormat):
    schema = chat_protocol.JsonSchema(name=wanted.name, schema=wanted.schema_)
    return chat_protocol.JsonSchemaFormat(
      type='json_schema', json_schema=schema
    )
  return wanted


class _Reply:
  """The reply to one request."""

  def __init__(self, served, body, turn):
    self.id = f'resp_{secrets.token_hex(12)}'
    self._served, self._body, self._turn = served, body, turn
    self._created = served.now
    self._answer = answering.Answer(
      served, 0, keep=turn.form.marks, tells_tokens=bool(body.include)
    )
    self._reader = reader.Reader(
      turn.form, is_parallel=body.parallel_tool_calls is not False
    )
    self._items = responses_items.Items()
    self._reasoning = ''
    self._number = 0

  async def whole(self, stream: streams.Stream) -> dict[str, Any]:
    """Waits for the end."""
    async for pieces in answering.read(stream, [self._answer]):
      for piece in pieces:
        self._take(piece)
    self._items.finish(self._status)
    return self._response(self._status)

  async def events(self, stream: streams.Stream) -> AsyncIterator[bytes]:
    """Tells what comes, as it comes."""
    begun = self._response('in_progress')
    yield self._encoded(
      [
        {'type': 'response.created', 'response': begun},
        {'type': 'response.in_progress', 'response': begun},
      ]
    )
    async for pieces in answering.read(stream, [self._answer]):
      yield self._encoded(
        [event for piece in pieces for event in self._take(piece)]
      )
    events = self._items.finish(self._status)
    ended = self._response(self._status)
    events.append({'type': f'response.{self._status}', 'response': ended})
    yield self._encoded(events)

  def failed(self, error: api_errors.ApiError) -> bytes:
    """The last event of a stream that failed."""
    found = self._response('failed')
    found['error'] = {'code': 'server_error', 'message': error.message}
    return self._encoded([{'type': 'response.failed', 'response': found}])

  def _take(self, piece):
    is_final = piece.finish_reason is not None
    told = self._reader.push(piece.text, is_final=is_final)
    self._reasoning += told.reasoning
    logprobs = chat_logprobs.entries(
      self._served.target.tokenizer,
      piece.settled,
      self._body.top_logprobs or 0,
      self._served.target.stop_ids,
    )
    return self._items.take(told, logprobs)

  def _encoded(self, events):
    parts = []
    for event in events:
      kind = event['type'].encode()
      event = {**event, 'sequence_number': self._number}
      self._number += 1
      parts.append(b'event: ' + kind + b'\n' + replies.event(event))
    return b''.join(parts)

  @property
  def _status(self):
    is_whole = self._answer.finish_reason == 'stop'
    return 'completed' if is_whole else 'incomplete'

  def _response(self, status):
    body = self._body
    told = body.model_dump(
      by_alias=True, include={'text', 'tools', 'tool_choice', 'metadata'}
    )
    is_cut = status == 'incomplete'
    is_over = status in ('completed', 'incomplete')
    return {
      'id': self.id,
      'object': 'response',
      'created_at': self._created,
      'status': status,
      'background': False,
      'error': None,
      'incomplete_details': (
        {'reason': 'max_output_tokens'} if is_cut else None
      ),
      'instructions': body.instructions,
      'max_output_tokens': body.max_output_tokens,
      'model': self._served.names[0],
      'output': list(self._items.output),
      'parallel_tool_calls': body.parallel_tool_calls is not False,
      'previous_response_id': None,
      'store': False,
      'temperature': 1.0 if body.temperature is None else body.temperature,
      'text': told['text'] or {'format': {'type': 'text'}},
      'tool_choice': told['tool_choice'] or 'auto',
      'tools': told['tools'] or [],
      'top_p': 1.0 if body.top_p is None else body.top_p,
      'truncation': 'disabled',
      'usage': self._usage() if is_over else None,
      'user': body.user,
      'metadata': told['metadata'] or {},
    }

  def notes(self) -> dict[str, Any]:
    """What the log says."""
    return usage_lib.notes(
      self.id,
      [self._answer],
      len(self._turn.prompt),
      prompts=self._served.texts([self._turn.prompt]),
    )

  def _usage(self):
    found = usage_lib.of(
      [self._answer],
      len(self._turn.prompt),
      self._body.speculative,
      num_reasoning=usage_lib.num_reasoning(
        self._served.target.tokenizer, [(self._answer, self._reasoning)]
      ),
    )
    return {
      'input_tokens': found['prompt_tokens'],
      'input_tokens_details': {
        **found['prompt_tokens_details'],
        'cache_write_tokens': 0,
      },
      'output_tokens': found['completion_tokens'],
      'output_tokens_details': found['completion_tokens_details'],
      'total_tokens': found['total_tokens'],
    }
