# SPDX-License-Identifier: MIT
"""Reads bodies: bounded in size, in time, and in what they may hold.

The parser is pydantic's own: it refuses what is no UTF-8, lone surrogates and
nesting without end. NaN and the infinities, which are no JSON, it would let
through where any value may stand, so they are looked for.
"""

import asyncio
import math
from typing import Any, TypeVar

import pydantic
from starlette.requests import ClientDisconnect, Request

from jspec.server import errors as api_errors
from jspec.server import limits as limits_lib

Model = TypeVar('Model', bound=pydantic.BaseModel)


async def read(
  request: Request, model: type[Model], limits: limits_lib.Limits
) -> Model:
  """Returns the body as a value.

  Raises:
    ApiError: it is too large, comes too slowly, or is not what is expected.
  """
  try:
    raw = await asyncio.wait_for(_bytes(request, limits), limits.body_s)
  except TimeoutError as error:
    raise api_errors.ApiError(
      408, f'the body did not come within {limits.body_s:g} s'
    ) from error
  except ClientDisconnect as error:
    raise api_errors.ApiError(499, 'the client left') from error
  return parse(raw, model)


def parse(raw: bytes, model: type[Model]) -> Model:
  """Reads JSON; `ApiError` if it is not what the model says."""
  try:
    found = model.model_validate_json(raw)
  except pydantic.ValidationError as error:
    raise api_errors.of_validation(error, raw) from error
  name = _not_json(found)
  if name is not None:
    raise api_errors.ApiError(
      400,
      f'{name} holds NaN or an infinity, which are no JSON; leave them out',
      param=name,
    )
  return found


async def _bytes(request, limits):
  announced = request.headers.get('content-length', '')
  if announced.isdigit() and int(announced) > limits.max_body:
    raise _too_large(limits)
  parts, size = [], 0
  async for part in request.stream():
    size += len(part)
    if size > limits.max_body:
      raise _too_large(limits)
    parts.append(part)
  return b''.join(parts)


def _too_large(limits):
  return api_errors.ApiError(
    413, f'the body is larger than {limits.max_body} bytes; shorten it'
  )


def _not_json(found: pydantic.BaseModel) -> str | None:
  """The first field that holds a number which is none."""
  for name in found.model_fields_set:
    if not _is_finite(getattr(found, name)):
      return name
  return None


def _is_finite(value: Any) -> bool:
  if isinstance(value, float):
    return math.isfinite(value)
  if isinstance(value, dict):
    return all(map(_is_finite, value.values()))
  if isinstance(value, list):
    return all(map(_is_finite, value))
  if isinstance(value, pydantic.BaseModel):
    return _not_json(value) is None
  return True
