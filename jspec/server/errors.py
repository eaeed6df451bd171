# SPDX-License-Identifier: MIT
"""Errors as OpenAI words them: a status, and an object that says what is wrong.

  {"error": {"message": .., "type": .., "param": .., "code": ..}}

`param` names the field where one is to blame. Whatever goes wrong on the way,
in routing, in the body, in the engine, has this shape.
"""

import json
import logging
from typing import Any

import pydantic
from fastapi import FastAPI
from starlette import exceptions, responses, types
from starlette.requests import Request

from jspec import errors
from jspec.server import driver
from jspec.server.protocol import common

_LOG = logging.getLogger('jspec.server')
_TYPES = {
  401: 'authentication_error',
  403: 'permission_error',
  404: 'not_found_error',
  429: 'rate_limit_error',
}


class ApiError(Exception):
  """Something that the client is told.

  Attributes:
    status: of HTTP.
    message: what, and how to mend it.
    param: the field to blame.
    code: for programs.
    retry_after_s: when to come again.
  """

  def __init__(
    self,
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    retry_after_s: int | None = None,
  ):
    super().__init__(message)
    self.status, self.message = status, message
    self.param, self.code = param, code
    self.retry_after_s = retry_after_s

  @property
  def body(self) -> dict[str, Any]:
    """The object of the answer."""
    kind = _TYPES.get(self.status, 'invalid_request_error')
    return {
      'error': {
        'message': self.message,
        'type': 'server_error' if self.status >= 500 else kind,
        'param': self.param,
        'code': self.code,
      }
    }

  def response(self) -> responses.Response:
    """The whole answer."""
    headers = {}
    if self.retry_after_s is not None:
      headers['Retry-After'] = str(self.retry_after_s)
    if self.status in (408, 413):
      headers['Connection'] = 'close'  # The rest of the body is not read.
    return responses.JSONResponse(self.body, self.status, headers)


class ErrorObject(pydantic.BaseModel):
  """What is wrong."""

  message: str
  type: str
  param: str | None
  code: str | None


class ErrorBody(pydantic.BaseModel):
  """How every error looks."""

  error: ErrorObject


def of(error: Exception) -> ApiError:
  """What the client is told of any exception."""
  if isinstance(error, ApiError):
    return error
  if isinstance(error, driver.Busy):
    return ApiError(
      429,
      'the queue of this server is full; try again later',
      code='rate_limit_exceeded',
      retry_after_s=1,
    )
  if isinstance(error, driver.Unavailable):
    return ApiError(503, str(error), code='unavailable', retry_after_s=5)
  if isinstance(error, errors.UserError):
    return ApiError(400, str(error).splitlines()[0])
  if isinstance(error, TimeoutError):
    return ApiError(504, 'the answer took too long', code='timeout')
  _LOG.error('a request failed', exc_info=error)
  return ApiError(500, 'this server has a defect; its log says which')


def of_validation(error: pydantic.ValidationError, raw: bytes) -> ApiError:
  """The first thing that is wrong with a body, and where."""
  first = error.errors(include_url=False)[0]
  if first['type'] == 'json_invalid':
    return ApiError(
      400, f'the body is not valid JSON ({first["ctx"]["error"]}); correct it'
    )
  if first['type'] == common.FIELD_ERROR:
    place = (*_place(first['loc'], raw), first['ctx']['field'])
  else:
    place = _place(first['loc'], raw)
  param = '.'.join(map(str, place)) or None
  if first['type'] == 'extra_forbidden':
    return ApiError(
      400,
      f'unknown or unsupported parameter {param!r}; leave it out',
      param=param,
      code='unknown_parameter',
    )
  missing = first['type'] == 'missing'
  return ApiError(
    400,
    f'{param or "the body"}: {_sentence(first["msg"])}',
    param=param,
    code='missing_required_parameter' if missing else 'invalid_value',
  )


def _sentence(message):
  return message[:1].lower() + message[1:200]


def _place(loc, raw):
  """The path in the body: without the branches of unions that were tried."""
  at = json.loads(raw)
  place = []
  for part in loc:
    if isinstance(at, dict) and isinstance(part, str) and part in at:
      place.append(part)
      at = at[part]
    elif isinstance(at, list) and isinstance(part, int) and part < len(at):
      place.append(part)
      at = at[part]
  # What is missing is not there to be found.
  if loc and isinstance(at, dict) and isinstance(loc[-1], str):
    if not place or loc[-1] != place[-1]:
      place.append(loc[-1])
  return tuple(place)


def add(app: FastAPI) -> None:
  """Gives all errors of an app their shape."""
  app.add_exception_handler(ApiError, _answer)
  app.add_exception_handler(driver.Busy, _answer)
  app.add_exception_handler(driver.Unavailable, _answer)
  app.add_exception_handler(errors.UserError, _answer)
  app.add_exception_handler(TimeoutError, _answer)
  app.add_exception_handler(exceptions.HTTPException, _answer_http)
  app.add_middleware(Defects)


class Defects:
  """ASGI middleware: what nobody expected is a 500, and the server goes on."""

  def __init__(self, app: types.ASGIApp):
    self._app = app

  async def __call__(
    self, scope: types.Scope, receive: types.Receive, send: types.Send
  ) -> None:
    """Passes on; answers where something was raised before any answer."""
    has_begun = False

    async def heard(message):
      nonlocal has_begun
      has_begun |= message['type'] == 'http.response.start'
      await send(message)

    try:
      await self._app(scope, receive, heard)
    except Exception as error:
      if scope['type'] != 'http' or has_begun:
        raise
      await of(error).response()(scope, receive, send)


async def _answer(request: Request, error: Exception) -> responses.Response:
  del request
  return of(error).response()


async def _answer_http(
  request: Request, error: exceptions.HTTPException
) -> responses.Response:
  said = f'{request.method} {request.url.path}: {error.detail}'
  response = ApiError(error.status_code, said).response()
  response.headers.update(error.headers or {})
  return response
