# SPDX-License-Identifier: MIT
"""Spans of requests, where OpenTelemetry is installed; nothing of it else."""

import importlib.util
import subprocess
import sys

import pytest

from jspec import errors
from jspec.serve import asks
from jspec.server import streams, tracing
from tests.server import fake, running

needs_sdk = pytest.mark.skipif(
  importlib.util.find_spec('opentelemetry.sdk') is None,
  reason='OpenTelemetry is not installed (extra otel)',
)
NOTES = {
  'path': '/v1/completions',
  'status': 200,
  'id': 'cmpl-1',
  'prompt_tokens': 3,
  'completion_tokens': 5,
  'finish_reasons': ['stop', None],
  'drafted': 4,
  'accepted': 2,
  'rounds': 3,
  'read_s': 0.5,
  'queue_s': 1.0,
  'prefill_s': 2.0,
  'decode_s': 3.0,
}


@pytest.fixture
def recorded():
  """Spans, and where they are found; nothing is global."""
  from opentelemetry.sdk import trace
  from opentelemetry.sdk.trace import export
  from opentelemetry.sdk.trace.export import in_memory_span_exporter

  exporter = in_memory_span_exporter.InMemorySpanExporter()
  provider = trace.TracerProvider()
  provider.add_span_processor(export.SimpleSpanProcessor(exporter))
  return tracing.Spans(provider, 'fake'), exporter


def by_name(exporter):
  return {span.name: span for span in exporter.get_finished_spans()}


@needs_sdk
def test_phases_follow_each_other_inside_the_request(recorded):
  spans, exporter = recorded
  spans.tell(NOTES, 10**9, 8 * 10**9)
  found = by_name(exporter)
  whole = found.pop('text_completion fake')
  assert (whole.start_time, whole.end_time) == (10**9, 8 * 10**9)
  assert whole.attributes['gen_ai.usage.output_tokens'] == 5
  assert whole.attributes['gen_ai.response.finish_reasons'] == ('stop', 'abort')
  assert whole.attributes['jspec.accepted'] == 2
  assert list(found) == ['queue', 'prefill', 'decode']
  at = 1.5e9
  for span, seconds in zip(found.values(), (1, 2, 3), strict=True):
    assert (span.start_time, span.end_time) == (at, at + seconds * 1e9)
    assert span.parent.span_id == whole.context.span_id
    at = span.end_time


@needs_sdk
def test_what_did_not_come_so_far_has_no_span(recorded):
  spans, exporter = recorded
  failed = {**NOTES, 'status': 500, 'prefill_s': None, 'decode_s': None}
  spans.tell(failed, 0, 10**9)
  found = by_name(exporter)
  assert set(found) == {'text_completion fake', 'queue'}
  assert not found['text_completion fake'].status.is_ok
  refused = {k: v for k, v in NOTES.items() if not k.endswith('_s')}
  exporter.clear()
  spans.tell({**refused, 'status': 429}, 0, 1)
  spans.tell({'path': '/v1/models', 'status': 200}, 0, 1)
  assert list(by_name(exporter)) == ['text_completion fake']


@needs_sdk
def test_requests_are_told_without_their_texts(recorded):
  spans, exporter = recorded
  with running.serving(
    fake.Engine(pause_s=0.01), spans=spans, logs_text=True
  ) as server:
    client = server.client()
    messages = [{'role': 'user', 'content': 'my secret'}]
    said = client.chat.completions.create(
      model='fake', messages=messages, temperature=0
    )
    list(client.responses.create(model='fake', input='my secret', stream=True))
    server.get('/v1/models')
    running.until(lambda: len(exporter.get_finished_spans()) == 8)
  spans = exporter.get_finished_spans()
  assert [span.name for span in spans].count('chat fake') == 2
  whole = next(s for s in spans if s.name == 'chat fake')
  assert whole.attributes['gen_ai.response.id'] == said.id
  text = ''.join(span.to_json() for span in spans)
  assert 'secret' not in text
  assert said.choices[0].message.content not in text


def test_times_of_a_stream_are_those_of_its_answers():
  stream = streams.Stream(2, 10.0, lambda *_: None)
  assert set(stream.times().values()) == {10.0, None}

  def event(**of):
    return asks.Event(request_id='a', tokens=(1,), **of)

  stream.push(1, event(admitted_s=12.0), 15.0)
  stream.push(0, event(admitted_s=11.0), 16.0)
  stream.push(1, event(admitted_s=12.0), 18.0)
  assert stream.times() == {
    'opened_s': 10.0,
    'queue_s': 1.0,
    'prefill_s': 4.0,
    'decode_s': 3.0,
  }


@pytest.mark.parametrize(
  'endpoint, variables, expected',
  [
    (None, {}, False),
    ('http://x', {}, True),
    (None, {'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://x'}, True),
    ('http://x', {'OTEL_SDK_DISABLED': 'true'}, False),
  ],
)
def test_traces_are_asked_for(monkeypatch, endpoint, variables, expected):
  for name in (*tracing.VARIABLES, 'OTEL_SDK_DISABLED'):
    monkeypatch.delenv(name, raising=False)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  assert tracing.is_asked_for(endpoint) == expected


def test_missing_library_is_named(monkeypatch):
  monkeypatch.setitem(sys.modules, 'opentelemetry.sdk', None)
  with pytest.raises(errors.UserError, match=r'jspec\[otel\]'):
    tracing.start('http://127.0.0.1:1', 'fake')


def test_nothing_is_imported_unless_asked():
  code = (
    'import sys, jspec.server.app, jspec.server.run, jspec.server.tracing;'
    "assert 'opentelemetry.sdk' not in sys.modules"
  )
  subprocess.run([sys.executable, '-c', code], check=True)
