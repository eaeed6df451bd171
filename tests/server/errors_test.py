# SPDX-License-Identifier: MIT
"""Whatever is wrong, the answer is OpenAI's error object, and never a 500."""

import json
import socket
import threading
import time

import httpx
import pytest

from jspec.server import bodies, errors
from jspec.server.protocol import chat
from tests.server import fake, running


@pytest.fixture(scope='module')
def server():
  with running.serving(limits={'max_body': 20_000, 'body_s': 0.5}) as found:
    yield found


def error_of(response):
  body = response.json()
  assert set(body) == {'error'}
  assert set(body['error']) == {'message', 'type', 'param', 'code'}
  assert response.headers['content-type'] == 'application/json'
  return body['error']


CHAT = b'{"model":"fake","messages":[{"role":"user","content":"x"}]'


@pytest.mark.few(12)
@pytest.mark.parametrize(
  'raw',
  [
    b'',
    b'{',
    b'nonsense',
    b'[]',
    b'null',
    b'"text"',
    b'\xff\xfe{}',
    CHAT + b',"user":"\xc3\x28"}',
    CHAT + b',"user":"\\ud800"}',
    CHAT + b',"temperature":NaN}',
    CHAT + b',"temperature":Infinity}',
    CHAT + b',"temperature":1e999}',
    CHAT + b',"seed":' + b'9' * 5000 + b'}',
    CHAT + b',"max_tokens":1e3}',
    CHAT + b',"n":true}',
    CHAT + b',"n":"1"}',
    CHAT + b',"logit_bias":{"99999999999":1}}',
    CHAT + b',"logit_bias":{"4000":1}}',
    CHAT + b',"stop_token_ids":[99999]}',
    CHAT + b',"tools":' + b'[' * 9000 + b']' * 9000 + b'}',
    CHAT + b',"tools":[{"type":"function","function":{"name":"f",'
    b'"parameters":{"a":NaN}}}]}',
    CHAT + b',"chat_template_kwargs":{"a":-Infinity}}',
    CHAT + b',"top_k":99999999999999999999}',
    CHAT + b',"stop":["' + b'x' * 600 + b'"]}',
    CHAT + b',"max_tokens":5,"min_tokens":6}',
    b'{"messages":[]}',
    b'{"messages":"x"}',
    b'{"messages":[{"role":"user"}]}',
    b'{"messages":[{"role":"judge","content":"x"}]}',
    b'{"messages":[{"role":"tool","content":"x"}]}',
    b'{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}',
    CHAT + b'}}',
  ],
)
def test_bad_body_is_400(server, raw):
  for _ in range(2):
    response = httpx.post(
      server.url + '/v1/chat/completions', content=raw, timeout=20
    )
    assert response.status_code == 400, response.text
    assert error_of(response)['type'] == 'invalid_request_error'
  good = server.post('/v1/chat/completions', json.loads(CHAT + b'}'))
  assert good.status_code == 200


@pytest.mark.parametrize(
  'method, path, status',
  [
    ('GET', '/nowhere', 404),
    ('GET', '/v1/models/nobody', 404),
    ('GET', '/v1/chat/completions', 405),
    ('DELETE', '/v1/models', 405),
    ('POST', '/v1/models', 405),
    ('POST', '/v1/completions/', 404),
  ],
)
def test_wrong_path_or_method(server, method, path, status):
  response = httpx.request(method, server.url + path)
  assert response.status_code == status
  error_of(response)


def test_large_body_is_413_announced_or_not(server):
  body = b'{"prompt": "' + b'x' * 30_000 + b'"}'
  response = httpx.post(server.url + '/v1/completions', content=body)
  assert response.status_code == 413
  error_of(response)
  chunks = (body[i : i + 1000] for i in range(0, len(body), 1000))
  try:
    response = httpx.post(server.url + '/v1/completions', content=chunks)
  except httpx.TransportError:
    return  # The server may close while the client still sends.
  assert response.status_code == 413


def test_slow_body_is_408(server):
  host, port = server.url.removeprefix('http://').split(':')
  with socket.create_connection((host, int(port)), timeout=5) as link:
    link.sendall(
      b'POST /v1/completions HTTP/1.1\r\nHost: x\r\n'
      b'Content-Length: 50\r\n\r\n{"prompt":'
    )
    began = time.monotonic()
    assert b' 408 ' in link.recv(4096).split(b'\r\n')[0]
    assert time.monotonic() - began < 3


def test_defect_is_500_without_details(server, monkeypatch):
  def broken(*args, **named):
    raise RuntimeError('secret')

  monkeypatch.setattr(
    server.served.target.tokenizer.__class__, 'encode', broken
  )
  response = server.post('/tokenize', {'prompt': 'x'})
  assert response.status_code == 500
  assert 'secret' not in response.text
  assert error_of(response)['type'] == 'server_error'


def test_keys_let_in_who_has_one():
  limits = {'api_keys': ('one', 'two')}
  with running.serving(limits=limits) as server:
    body = {'prompt': 'x', 'max_tokens': 2}
    for given in (None, 'three', 'on', 'one two'):
      headers = {} if given is None else {'Authorization': f'Bearer {given}'}
      response = server.post('/v1/completions', body, headers=headers)
      assert response.status_code == 401
      assert error_of(response)['code'] == 'invalid_api_key'
    for given in ('one', 'two'):
      headers = {'Authorization': f'Bearer {given}'}
      response = server.post('/v1/completions', body, headers=headers)
      assert response.status_code == 200
    for path in ('/health', '/ready', '/metrics'):
      assert server.get(path).status_code == 200
    assert server.get('/v1/models').status_code == 401


def test_full_queue_is_429_with_a_time():
  engine = fake.Engine(max_rows=1)
  with running.serving(engine, max_queue=0) as server:
    engine.gate.clear()
    client = server.client()
    first = threading.Thread(
      target=lambda: client.completions.create(model='fake', prompt='x')
    )
    first.start()
    running.until(lambda: server.served.driver.num_open == 1)
    response = server.post('/v1/completions', {'prompt': 'x'})
    assert response.status_code == 429
    assert int(response.headers['retry-after']) >= 1
    assert error_of(response)['type'] == 'rate_limit_error'
    engine.gate.set()
    first.join(10)
    assert server.post('/v1/completions', {'prompt': 'x'}).status_code == 200
    assert 'jspec:queue_refusals_total{model_name="fake"} 1.0' in (
      server.get('/metrics').text
    )


def test_request_that_takes_too_long_is_504_or_an_event():
  engine = fake.Engine(lambda prompt, ask: [97] * 300, pause_s=0.05)
  with running.serving(engine, limits={'request_s': 0.3}) as server:
    body = {'prompt': 'x'}
    response = server.post('/v1/completions', body)
    assert response.status_code == 504
    assert error_of(response)['code'] == 'timeout'
    streamed = server.post('/v1/completions', {**body, 'stream': True})
    lines = streamed.text.strip().split('\n\n')
    assert json.loads(lines[-2].removeprefix('data: '))['error']
    assert lines[-1] == 'data: [DONE]'
    running.until(lambda: not engine.has_work)


def test_broken_engine_fails_streams_and_health():
  engine = fake.Engine(lambda prompt, ask: [97] * 300, pause_s=0.02)
  with running.serving(engine) as server:
    assert server.get('/health').status_code == 200
    body = {'prompt': 'x', 'stream': True}
    url = server.url + '/v1/completions'
    with httpx.stream('POST', url, json=body, timeout=10) as response:
      lines = response.iter_lines()
      assert next(lines).startswith('data: ')
      engine.broken = RuntimeError('the device is gone')
      rest = [line for line in lines if line]
    assert json.loads(rest[-2].removeprefix('data: '))['error']['code'] == (
      'unavailable'
    )
    for path in ('/health', '/ready'):
      assert server.get(path).status_code == 503
    response = server.post('/v1/completions', {'prompt': 'x'})
    assert response.status_code == 503
    assert 'retry-after' in response.headers


def test_place_in_a_union_is_that_of_the_body():
  raw = CHAT + b',"stop":["a",5]}'
  with pytest.raises(errors.ApiError) as error:
    bodies.parse(raw, chat.ChatRequest)
  assert error.value.param in ('stop', 'stop.1')
