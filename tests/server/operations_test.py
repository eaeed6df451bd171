# SPDX-License-Identifier: MIT
"""What an operator looks at: health, metrics, logs, models, tokens."""

import json
import logging
import threading

import pytest

from jspec import errors
from jspec.server import driver, histogram, limits, logs, served
from tests.server import fake, running


@pytest.fixture(scope='module')
def server():
  with running.serving() as found:
    yield found


def metrics(server):
  found = {}
  for line in server.get('/metrics').text.splitlines():
    if not line.startswith('#'):
      name, value = line.rsplit(' ', 1)
      found[name] = float(value)
  return found


def name_of(metric, **labels):
  labels = {'model_name': 'fake', **labels}
  inside = ','.join(f'{key}="{labels[key]}"' for key in sorted(labels))
  return f'jspec:{metric}{{{inside}}}'


def test_alive_before_ready():
  may_start = threading.Event()
  engine = fake.Engine()

  def make():
    may_start.wait(20)
    return engine

  with running.serving(engine, make=make, waits=False) as server:
    assert server.get('/health').json() == {'status': 'ok'}
    assert server.get('/ready').status_code == 503
    assert server.post('/v1/completions', {'prompt': 'x'}).status_code == 503
    assert server.get('/metrics').status_code == 200
    assert server.get('/v1/models').status_code == 200
    may_start.set()
    running.until(lambda: server.get('/ready').status_code == 200)
    assert server.post('/v1/completions', {'prompt': 'x'}).status_code == 200


def test_metrics_count_what_was_served():
  with running.serving() as server:
    body = {
      'prompt': 'abc',
      'temperature': 0,
      'speculative': {'details': True},
    }
    found = server.post('/v1/completions', body).json()
    usage = found['usage']
    server.post('/v1/completions', {'prompt': 'abc', 'max_tokens': 2})
    told = metrics(server)
    details = usage['completion_tokens_details']
    assert (
      told[name_of('spec_decode_num_draft_tokens_total')]
      >= (details['drafted'])
    )
    assert told[name_of('prompt_tokens_total')] == 6
    assert told[name_of('generation_tokens_total')] == (
      usage['completion_tokens'] + 2
    )
    by_place = [
      told[name_of('spec_decode_num_accepted_tokens_per_pos_total', position=i)]
      for i in range(2)
    ]
    assert (
      sum(by_place) == told[name_of('spec_decode_num_accepted_tokens_total')]
    )
    assert told[name_of('request_success_total', finished_reason='stop')] == 1
    assert told[name_of('request_success_total', finished_reason='length')] == 1
    for name in ('time_to_first_token', 'request_queue_time'):
      assert told[name_of(f'{name}_seconds_count')] == 2
    assert (
      told[name_of('request_queue_time_seconds_sum')]
      + told[name_of('request_prefill_time_seconds_sum')]
    ) == pytest.approx(told[name_of('time_to_first_token_seconds_sum')])
    gaps = told[name_of('inter_token_latency_seconds_count')]
    assert gaps == usage['completion_tokens'] - 3  # All but the first event's.
    assert told[name_of('num_requests_running')] == 0


def test_metrics_tell_of_pages_and_prefixes(server):
  told = metrics(server)
  pool = server.engine.metrics.pool
  assert told[name_of('kv_cache_usage_perc')] == 4 / 16
  for state, num in (('used', 4), ('cached', 4), ('free', 8)):
    assert told[name_of('kv_pages', state=state)] == num
  assert told[name_of('prefix_cache_queries_total')] == pool.num_queried_tokens
  assert told[name_of('prefix_cache_hits_total')] == pool.num_hit_tokens
  assert told[name_of('num_preemptions_total')] == pool.num_preemptions
  assert told[name_of('drafter_version')] == 0


def test_waiting_and_running_are_told_apart():
  engine = fake.Engine(max_rows=1)
  with running.serving(engine) as server:
    engine.gate.clear()
    asking = [
      threading.Thread(
        target=server.post, args=('/v1/completions', {'prompt': 'x'})
      )
      for _ in range(3)
    ]
    for thread in asking:
      thread.start()
    running.until(lambda: server.served.driver.num_open == 3)
    told = metrics(server)
    assert told[name_of('num_requests_running')] == 1
    assert told[name_of('num_requests_waiting')] == 2
    engine.gate.set()
    for thread in asking:
      thread.join(10)


def test_histogram_counts_up():
  found = histogram.Histogram((1.0, 2.0))
  found.observe(1.0)
  found.observe(1.5, 3)
  found.observe(9.0)
  assert found.buckets() == [('1.0', 1), ('2.0', 4), ('+Inf', 5)]
  assert found.total == 14.5


@pytest.mark.parametrize('logs_text', [False, True])
def test_log_says_what_happened_and_not_what_was_said(caplog, logs_text):
  caplog.set_level(logging.INFO, logs.LOGGER)
  with running.serving(logs_text=logs_text) as server:
    body = {'prompt': 'my secret', 'temperature': 0}
    said = server.post('/v1/completions', body).json()
    server.post('/v1/chat/completions', {'messages': 'bad'})
  lines = [
    json.loads(logs.Lines().format(record))
    for record in caplog.records
    if record.name == logs.LOGGER
  ]
  first, second = [line for line in lines if line['event'] == 'request']
  assert first['id'] == said['id'] and first['status'] == 200
  assert first['completion_tokens'] == said['usage']['completion_tokens']
  assert first['finish_reasons'] == ['stop'] and first['rounds'] > 0
  assert second['status'] == 400
  text = json.dumps(lines)
  assert ('my secret' in text) == logs_text
  assert (said['choices'][0]['text'] in text) == logs_text


def test_models_are_listed_by_every_name(server):
  client = server.client()
  assert [model.id for model in client.models.list()] == ['fake', 'alias']
  model = client.models.retrieve('alias')
  assert model.owned_by == 'jspec'
  assert model.depth_policies == ['dcut', 'static']
  assert (
    server.post('/v1/completions', {'model': 'alias', 'prompt': 'x'}).json()[
      'model'
    ]
    == 'fake'
  )


def test_tokens_and_back(server):
  text = 'Hé <|im_end|>'
  found = server.post('/tokenize', {'prompt': text, 'return_token_strs': True})
  found = found.json()
  assert found['count'] == len(found['tokens']) == 5
  assert found['tokens'][-1] == fake.END
  assert found['token_strs'][0] == 'H'
  back = server.post('/detokenize', {'tokens': found['tokens']}).json()
  assert back == {'prompt': text}
  messages = [{'role': 'user', 'content': 'Hi'}]
  chat = server.post('/tokenize', {'messages': messages}).json()
  asked = server.post(
    '/v1/chat/completions', {'messages': messages, 'max_tokens': 1}
  ).json()
  assert chat['count'] == asked['usage']['prompt_tokens']


@pytest.mark.parametrize(
  'path, body',
  [
    ('/tokenize', {}),
    ('/tokenize', {'prompt': 'x', 'messages': []}),
    ('/detokenize', {'tokens': [99999]}),
    ('/detokenize', {'tokens': [-1]}),
    ('/detokenize', {'tokens': ['a']}),
  ],
)
def test_bad_tokens_are_400(server, path, body):
  assert server.post(path, body).status_code == 400


@pytest.mark.parametrize(
  'changes',
  [
    {'max_queue': -1},
    {'max_body': 0},
    {'request_s': 0.0},
    {'grace_s': -1.0},
    {'api_keys': ('',)},
    {'api_keys': ('schl\u00fcssel',)},
  ],
)
def test_limits_that_cannot_be_are_refused(changes):
  with pytest.raises(errors.UserError):
    limits.Limits(**changes)


def test_drafter_called_none_is_refused():
  with pytest.raises(errors.UserError, match='none'):
    served.Served(
      driver=driver.Driver(fake.Engine, max_open=1),
      target=None,
      names=('x',),
      vocab_size=1,
      context_len=1,
      drafters={'none': None},
    )
