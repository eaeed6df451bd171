# SPDX-License-Identifier: MIT
"""How answers leave: whole, or event by event (SSE), and what ends them.

A client that leaves ends its request at once, streaming or not: while a reply
is made somebody listens for that. A request that takes too long is ended too,
and so is one whose client stops reading.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol

from starlette import responses, types
from starlette.requests import Request

from jspec.server import errors as api_errors
from jspec.server import limits as limits_lib
from jspec.server import streams

DONE = b'data: [DONE]\n\n'
_LAST_WORD_S = 5.0
# Made once: it costs as much as what it writes of a token or two.
_encode = json.JSONEncoder(
  ensure_ascii=False, allow_nan=False, separators=(',', ':')
).encode


def dumps(value: Any) -> bytes:
  """JSON without blanks."""
  return _encode(value).encode()


def event(value: Any) -> bytes:
  """One event of a stream."""
  return b'data: ' + dumps(value) + b'\n\n'


class Reply(Protocol):
  """An answer in the making, in the form of one endpoint."""

  async def whole(self, stream: streams.Stream) -> dict[str, Any]:
    """Reads the stream to its end; returns the body of the answer."""
    ...

  def events(self, stream: streams.Stream) -> AsyncIterator[bytes]:
    """Reads the stream; yields the bytes of one or several events."""
    ...


async def send(
  request: Request,
  stream: streams.Stream,
  reply: Reply,
  limits: limits_lib.Limits,
  *,
  is_streamed: bool,
  end: bytes = DONE,
  failed: Callable[[api_errors.ApiError], bytes] | None = None,
) -> responses.Response:
  """Answers whole, or event by event once the engine has taken the request.

  Args:
    request: who asked.
    stream: what the engine says.
    reply: makes the answer.
    limits: seconds that it may take.
    is_streamed: event by event.
    end: see `EventStream`.
    failed: see `EventStream`.

  Raises:
    ApiError: the client left, or the engine refused.
    TimeoutError: the request took too long.
  """
  if is_streamed:
    await whole(request, stream, stream.accepted(), limits)
    return EventStream(
      reply.events(stream), stream, limits, end=end, failed=failed
    )
  found = await whole(request, stream, reply.whole(stream), limits)
  return responses.Response(dumps(found), media_type='application/json')


async def whole(
  request: Request,
  stream: streams.Stream,
  work: Coroutine[Any, Any, Any],
  limits: limits_lib.Limits,
) -> Any:
  """Waits for `work`, and ends the request if the client or the time is gone.

  Raises:
    ApiError: the client left; nobody will read it.
    TimeoutError: the request took too long.
  """
  working = asyncio.ensure_future(work)
  leaving = asyncio.ensure_future(_gone(request.receive))
  try:
    await asyncio.wait(
      (working, leaving),
      timeout=limits.request_s,
      return_when=asyncio.FIRST_COMPLETED,
    )
    if working.done():
      return working.result()
    if leaving.done():
      raise api_errors.ApiError(499, 'the client left')
    raise TimeoutError
  finally:
    leaving.cancel()
    working.cancel()
    # What they raised, if they did, was heard or is of no use.
    await asyncio.gather(working, leaving, return_exceptions=True)
    if working.cancelled() or working.exception() is not None:
      stream.close()


class EventStream(responses.Response):
  """Sends events as they come, several at a time where several came."""

  media_type = 'text/event-stream'

  def __init__(
    self,
    events: AsyncIterator[bytes],
    stream: streams.Stream,
    limits: limits_lib.Limits,
    *,
    end: bytes = DONE,
    failed: Callable[[api_errors.ApiError], bytes] | None = None,
  ):
    """Takes what to send.

    Args:
      events: bytes of one or several events.
      stream: closed when the client leaves.
      limits: seconds that it may take.
      end: sent after the last, and after an error.
      failed: the event that tells an error; None: its body.
    """
    super().__init__(
      headers={'Cache-Control': 'no-cache', 'X-Accel-Buffering': 'no'}
    )
    del self.headers['content-length']
    self._events, self._stream = events, stream
    self._limits, self._end = limits, end
    self._failed = failed or (lambda error: event(error.body))

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Sends until the end, or until the client leaves."""
    sending = asyncio.ensure_future(self._send(send))
    leaving = asyncio.ensure_future(_gone(receive))
    try:
      await asyncio.wait(
        (sending, leaving),
        timeout=self._limits.request_s + _LAST_WORD_S,
        return_when=asyncio.FIRST_COMPLETED,
      )
    finally:
      self._stream.close()
      leaving.cancel()
      sending.cancel()
      await asyncio.gather(sending, leaving, return_exceptions=True)

  async def _send(self, send):
    await send(
      {
        'type': 'http.response.start',
        'status': self.status_code,
        'headers': self.raw_headers,
      }
    )
    try:
      async with asyncio.timeout(self._limits.request_s):
        async for chunk in self._events:
          if chunk:
            await _more(send, chunk)
    except Exception as error:
      await _more(send, self._failed(api_errors.of(error)))
    await send(
      {'type': 'http.response.body', 'body': self._end, 'more_body': False}
    )


async def _more(send, chunk):
  await send({'type': 'http.response.body', 'body': chunk, 'more_body': True})


async def _gone(receive):
  """Returns when the client has left."""
  while (await receive())['type'] != 'http.disconnect':
    pass
