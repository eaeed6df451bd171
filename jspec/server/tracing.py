# SPDX-License-Identifier: MIT
"""`Spans`: where a request spent its time, for OpenTelemetry (extra `otel`).

  chat NAME        from the request to its end; below the span of its HTTP
    queue          until it has a row
    prefill        until its first tokens
    decode         until its last

Attributes are those of the semantic conventions for generative AI, and counts
of drafts; no prompt and no answer is among them. A request is told when it has
ended, so that nothing is done while it runs. Nothing of OpenTelemetry is
imported before `start`, but what FastAPI imports itself.
"""

import os
from collections.abc import Mapping
from typing import Any

from jspec import errors

VARIABLES = (
  'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT',
  'OTEL_EXPORTER_OTLP_ENDPOINT',
)
PHASES = ('queue', 'prefill', 'decode')
_PATH = '/v1/traces'
_OPERATIONS = {'/v1/completions': 'text_completion'}  # The others chat.
# Of the notes of a request (`usage.notes`).
_ATTRIBUTES = {
  'id': 'gen_ai.response.id',
  'prompt_tokens': 'gen_ai.usage.input_tokens',
  'completion_tokens': 'gen_ai.usage.output_tokens',
  'finish_reasons': 'gen_ai.response.finish_reasons',
  'drafted': 'jspec.drafted',
  'accepted': 'jspec.accepted',
  'rounds': 'jspec.rounds',
}


class Spans:
  """Tells of requests that ended."""

  def __init__(self, provider: Any, model: str):
    """Takes where spans go.

    Args:
      provider: `opentelemetry.sdk.trace.TracerProvider`.
      model: name of the target.
    """
    self._provider, self._model = provider, model
    self._tracer = provider.get_tracer('jspec')

  def tell(
    self, notes: Mapping[str, Any], began_ns: int, ended_ns: int
  ) -> None:
    """Tells of one request, if the engine had a part in it.

    Args:
      notes: what the log says of it.
      began_ns: when it came, since 1970.
      ended_ns: when it ended.
    """
    if 'id' not in notes:
      return
    operation = _OPERATIONS.get(notes['path'], 'chat')
    span = self._tracer.start_span(
      f'{operation} {self._model}',
      start_time=began_ns,
      attributes={
        'gen_ai.operation.name': operation,
        'gen_ai.provider.name': 'jspec',
        'gen_ai.response.model': self._model,
        **_attributes(notes),
      },
    )
    if 'read_s' in notes:  # Else the queue was full.
      self._phases(span, notes, began_ns)
    if notes['status'] is None or notes['status'] >= 500:
      from opentelemetry import trace

      span.set_attribute('error.type', str(notes['status']))
      span.set_status(trace.StatusCode.ERROR)
    span.end(ended_ns)

  def close(self) -> None:
    """Sends what has not been sent."""
    self._provider.shutdown()

  def _phases(self, span, notes, began_ns):
    from opentelemetry import trace

    context = trace.set_span_in_context(span)
    at = began_ns + _ns(notes['read_s'])
    at = began_ns + _ns(notes.get('read_s') or 0)
    for phase in PHASES:
      seconds = notes.get(f'{phase}_s')
      if seconds is None:  # It never came so far.
        break
      child = self._tracer.start_span(phase, context=context, start_time=at)
      at += _ns(seconds)
      child.end(at)


def start(endpoint: str | None, model: str) -> Spans:
  """Sends spans to an OTLP endpoint over HTTP from now on.

  FastAPI then tells of every HTTP request by itself.

  Args:
    endpoint: its base URL; None: the environment names it.
    model: name of the target.

  Raises:
    UserError: OpenTelemetry is not installed.
  """
  try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http import trace_exporter
    from opentelemetry.sdk import resources
    from opentelemetry.sdk import trace as sdk
    from opentelemetry.sdk.trace import export
  except ImportError as error:
    raise errors.UserError(
      f"traces need OpenTelemetry ({error}): pip install 'jspec[otel]'"
    ) from error
  named = os.environ.get('OTEL_SERVICE_NAME') or 'jspec'
  provider = sdk.TracerProvider(
    resource=resources.Resource.create({'service.name': named})
  )
  if endpoint is not None:
    endpoint = endpoint.rstrip('/').removesuffix(_PATH) + _PATH
  exporter = trace_exporter.OTLPSpanExporter(endpoint=endpoint)
  provider.add_span_processor(export.BatchSpanProcessor(exporter))
  trace.set_tracer_provider(provider)
  return Spans(provider, model)


def is_asked_for(endpoint: str | None) -> bool:
  """Whether a flag or the environment names an endpoint."""
  if os.environ.get('OTEL_SDK_DISABLED', '').lower() == 'true':
    return False
  return bool(endpoint or any(map(os.environ.get, VARIABLES)))


def _attributes(notes):
  found = {}
  for name, attribute in _ATTRIBUTES.items():
    value = notes.get(name)
    if isinstance(value, list):  # None: that answer was ended before.
      value = [each or 'abort' for each in value]
    if value is not None:
      found[attribute] = value
  return found


def _ns(seconds):
  return round(seconds * 1e9)
