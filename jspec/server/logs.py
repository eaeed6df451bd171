# SPDX-License-Identifier: MIT
"""Logs: one JSON object a line, on stderr, without what was said.

  {"time": "2026-01-01T00:00:00.000Z", "level": "info", "event": "request",
   "id": "cmpl-..", "method": "POST", "path": "/v1/completions",
   "status": 200, "seconds": 0.71, "prompt_tokens": 12, "drafted": 30, ...}

Prompts and answers go in only if the operator asks for it.
"""

import datetime
import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

from starlette import types

LOGGER = 'jspec.server'
_LOG = logging.getLogger(LOGGER)
# Of a request, what endpoints have to say about it; in its scope.
_NOTES = 'jspec.notes'
_QUIET = ('/health', '/ready', '/metrics', '/v1/jspec/status')


class Lines(logging.Formatter):
  """Writes a record as one line of JSON."""

  def format(self, record: logging.LogRecord) -> str:
    """Returns the line."""
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    line = {
      'time': at.isoformat(timespec='milliseconds').replace('+00:00', 'Z'),
      'level': record.levelname.lower(),
      'event': record.getMessage(),
    }
    line |= getattr(record, 'notes', {})
    if record.exc_info:
      line['traceback'] = self.formatException(record.exc_info)
    return json.dumps(line, ensure_ascii=False, default=str)


def start(level: int = logging.INFO) -> None:
  """Sends what the server and uvicorn log to stderr."""
  handler = logging.StreamHandler(sys.stderr)
  handler.setFormatter(Lines())
  for name in (LOGGER, 'uvicorn'):
    logger = logging.getLogger(name)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


def say(event: str, **notes: Any) -> None:
  """Logs that something happened."""
  _LOG.info(event, extra={'notes': notes})


def note(scope: types.Scope, tell: Callable[[], dict[str, Any]]) -> None:
  """Adds to the line of a request, when it ends, what `tell` says then."""
  scope[_NOTES].append(tell)


class Requests:
  """ASGI middleware that logs a line for every request that ended."""

  def __init__(self, app: types.ASGIApp, spans: Any = None):
    """Takes who else is told (`tracing.Spans`)."""
    self._app, self._spans = app, spans

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Passes on, and logs."""
    if scope['type'] != 'http' or scope['path'] in _QUIET:
      await self._app(scope, receive, send)
      return
    notes = scope[_NOTES] = []
    status = None

    async def heard(message):
      nonlocal status
      if message['type'] == 'http.response.start':
        status = message['status']
      await send(message)

    began, began_ns = time.monotonic(), time.time_ns()
    try:
      await self._app(scope, receive, heard)
    finally:
      told = {}
      for tell in notes:
        told |= tell()
      seconds = time.monotonic() - began
      if 'opened_s' in told:  # Before, its body was read and made a prompt.
        told['read_s'] = round(told.pop('opened_s') - began, 6)
      line = {
        'method': scope['method'],
        'path': scope['path'],
        'status': status,
        'seconds': round(seconds, 4),
        **told,
      }
      say('request', **line)
      if self._spans is not None:
        self._spans.tell(line, began_ns, began_ns + round(seconds * 1e9))
