# SPDX-License-Identifier: MIT
"""`create`: the HTTP server as an ASGI application.

Endpoints read their bodies themselves (`bodies`), so what FastAPI does here is
routing and the OpenAPI schema, whose request bodies are the models of
`protocol`. Other parts hang more routes onto the result.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import fastapi
import pydantic
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse
from pydantic import json_schema
from starlette.responses import Response

import jspec
from jspec.server import (
  bodies,
  chat,
  completions,
  limits,
  logs,
  metrics,
  models,
  responses,
  status,
  swaps,
  tokenize,
)
from jspec.server import errors as api_errors
from jspec.server import served as served_lib
from jspec.server.page import page
from jspec.server.protocol import chat as chat_protocol
from jspec.server.protocol import completions as completions_protocol
from jspec.server.protocol import responses as responses_protocol
from jspec.server.protocol import swaps as swaps_protocol
from jspec.server.protocol import tokens as tokens_protocol

_REF = '#/components/schemas/{model}'
_BODIES = (
  completions_protocol.CompletionRequest,
  chat_protocol.ChatRequest,
  responses_protocol.ResponsesRequest,
  tokens_protocol.TokenizeRequest,
  tokens_protocol.DetokenizeRequest,
  swaps_protocol.SwapRequest,
)
_STATUSES = {
  400: 'The request cannot be honoured; `param` names the field.',
  401: 'The API key is missing or wrong.',
  404: 'There is no such model.',
  408: 'The body did not come in time.',
  413: 'The body is too large.',
  429: 'The queue is full; see Retry-After.',
  500: 'The answer failed.',
  503: 'The engine starts, stops or broke.',
  504: 'The answer took too long.',
}


def create(served: served_lib.Served) -> FastAPI:
  """Returns the application; its life begins and ends the driver's thread."""

  @contextlib.asynccontextmanager
  async def life(app: FastAPI) -> AsyncIterator[None]:
    ready = served.driver.start()
    ready.add_done_callback(
      # Whoever runs the server looks at `driver.failure`.
      lambda ready: ready.exception() or app.state.metrics.attach()
    )
    yield
    served.driver.stop()

  app = FastAPI(
    title='jspec',
    version=jspec.__version__,
    description=(
      "OpenAI's API over lossless speculative decoding. A field that cannot be"
      ' honoured is refused by name.'
    ),
    lifespan=life,
    docs_url=None,
    redoc_url=None,
    # Paths are what they are: no detour to the same with a slash behind.
    redirect_slashes=False,
  )
  app.state.served = served
  app.state.metrics = metrics.Metrics(served)
  api_errors.add(app)
  _add_routes(app, served)
  page.add(app)
  app.openapi = lambda: _schema(app)
  bounds = served.limits
  if served.swaps is not None and bounds.admin_keys:
    _add_swaps(app, served)
  if bounds.api_keys or bounds.admin_keys:
    app.add_middleware(
      limits.Keys, api_keys=bounds.api_keys, admin_keys=bounds.admin_keys
    )
  app.add_middleware(logs.Requests, spans=served.spans)
  return app


def _add_routes(app, served):
  started = served.now

  @app.post('/v1/completions', **_about(_BODIES[0], streams=True))
  async def create_completion(request: Request) -> Response:
    return await completions.create(request, served)

  @app.post('/v1/chat/completions', **_about(_BODIES[1], streams=True))
  async def create_chat_completion(request: Request) -> Response:
    return await chat.create(request, served)

  @app.post('/v1/responses', **_about(_BODIES[2], streams=True))
  async def create_response(request: Request) -> Response:
    return await responses.create(request, served)

  @app.get('/v1/models', **_about(statuses=(401,)))
  async def list_models() -> Response:
    return JSONResponse(models.every(served, started))

  @app.get('/v1/models/{name:path}', **_about(statuses=(401, 404)))
  async def get_model(name: str) -> Response:
    return JSONResponse(models.one(served, name, started))

  @app.post('/tokenize', **_about(_BODIES[3]))
  async def tokenize_text(request: Request) -> Response:
    return JSONResponse(await tokenize.tokenize(request, served))

  @app.post('/detokenize', **_about(_BODIES[4]))
  async def detokenize_ids(request: Request) -> Response:
    return JSONResponse(await tokenize.detokenize(request, served))

  @app.get('/v1/jspec/routing', **_about(statuses=(401,)))
  async def tell_routing() -> Response:
    return JSONResponse(served.routes.told())

  @app.get('/v1/jspec/status', **_about(statuses=(401,)))
  async def tell_status() -> Response:
    return JSONResponse(status.of(served))

  @app.get('/health', **_about(statuses=(503,)))
  async def health() -> Response:
    if served.driver.failure is not None:
      raise api_errors.ApiError(503, 'the engine broke', code='unavailable')
    return JSONResponse({'status': 'ok'})

  @app.get('/ready', **_about(statuses=(503,)))
  async def ready() -> Response:
    served.driver.check_there()
    return JSONResponse({'status': 'ready'})

  @app.get('/metrics', **_about(statuses=()), response_class=PlainTextResponse)
  async def tell_metrics() -> Response:
    return Response(app.state.metrics.text(), media_type=metrics.CONTENT_TYPE)


def _add_swaps(app, served):
  @app.get(limits.ADMIN, **_about(statuses=(401,)))
  async def list_drafters() -> Response:
    return JSONResponse(swaps.every(served))

  @app.post(
    limits.ADMIN + '/{name}',
    **_about(_BODIES[5], statuses=(400, 401, 404, 408, 413, 503)),
  )
  async def swap_drafter(name: str, request: Request) -> Response:
    body = await bodies.read(request, swaps_protocol.SwapRequest, served.limits)
    return JSONResponse(await served.swaps.swap(served, name, body.path))


def _about(
  body: type[pydantic.BaseModel] | None = None,
  *,
  streams: bool = False,
  statuses: tuple[int, ...] = tuple(_STATUSES),
) -> dict[str, Any]:
  """What the schema says of a route: its body, and how it may fail."""
  found = {
    'responses': {
      status: {'model': api_errors.ErrorBody, 'description': _STATUSES[status]}
      for status in statuses
    },
  }
  if body is not None:
    schema = {'$ref': _REF.format(model=body.__name__)}
    found['openapi_extra'] = {
      'requestBody': {
        'content': {'application/json': {'schema': schema}},
        'required': True,
      }
    }
  if streams:
    found['responses'][200] = {
      'description': 'The answer, whole or as events.',
      'content': {'application/json': {}, 'text/event-stream': {}},
    }
  return found


def _schema(app: FastAPI) -> dict[str, Any]:
  """The OpenAPI schema, with the models of the request bodies."""
  if app.openapi_schema is None:
    found = fastapi.openapi.utils.get_openapi(
      title=app.title,
      version=app.version,
      description=app.description,
      routes=app.routes,
    )
    _, definitions = json_schema.models_json_schema(
      [(body, 'validation') for body in _BODIES], ref_template=_REF
    )
    schemas = found.setdefault('components', {}).setdefault('schemas', {})
    schemas.update(definitions['$defs'])
    for path in found['paths'].values():
      for operation in path.values():
        # FastAPI's own; such requests get 400 here.
        operation['responses'].pop('422', None)
    app.openapi_schema = found
  return app.openapi_schema
