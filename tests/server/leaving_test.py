# SPDX-License-Identifier: MIT
"""Clients that leave: their rows are free at once, streaming or not."""

import contextlib
import json
import socket

import httpx
import pytest

from tests.server import fake, running


def open_request(server, path, body):
  host, port = server.url.removeprefix('http://').split(':')
  link = socket.create_connection((host, int(port)), timeout=5)
  raw = json.dumps(body).encode()
  link.sendall(
    f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n'
    f'\r\n'.encode()
    + raw
  )
  return link


BODIES = {
  '/v1/completions': {'prompt': 'x'},
  '/v1/chat/completions': {'messages': [{'role': 'user', 'content': 'x'}]},
  '/v1/responses': {'input': 'x'},
}


@pytest.mark.parametrize('path', BODIES)
def test_rows_are_free_when_clients_leave(path):
  engine = fake.Engine(lambda prompt, ask: [97] * 400, pause_s=0.01)
  with running.serving(engine, max_queue=64) as server:
    for _ in range(3):
      links = [
        open_request(server, path, {**BODIES[path], 'stream': stream})
        for stream in (False, True) * 8
      ]
      running.until(lambda: server.served.driver.num_open == 16)
      before = engine.num_steps
      for link in links:
        link.close()
      running.until(lambda: not engine.has_work)
      assert server.served.driver.num_open == 0
      assert engine.num_steps - before < 60
    engine.says = fake.saying('well')
    found = server.post(path, BODIES[path])
    assert found.status_code == 200
    assert server.served.driver.num_ended['abort'] == 48


def test_choices_of_a_client_that_left_all_end():
  engine = fake.Engine(lambda prompt, ask: [97] * 400, pause_s=0.01)
  with running.serving(engine) as server:
    body = {'prompt': ['a', 'b'], 'n': 3, 'stream': True}
    with httpx.stream(
      'POST', server.url + '/v1/completions', json=body
    ) as response:
      lines = response.iter_lines()  # Dropping it would close the link.
      next(lines)
      assert server.served.driver.num_open == 6
    running.until(lambda: not engine.has_work)


def test_client_that_does_not_read_holds_nobody_up():
  engine = fake.Engine(lambda prompt, ask: [97] * 400)
  with running.serving(engine) as server:
    body = {**BODIES['/v1/completions'], 'stream': True, 'n': 4}
    body['logprobs'] = 20  # Many bytes a token.
    link = open_request(server, '/v1/completions', body)
    with contextlib.closing(link):
      running.until(lambda: engine.asked and not engine.has_work)
      engine.says = fake.saying('well')
      assert server.post('/v1/completions', {'prompt': 'x'}).status_code == 200
    running.until(lambda: server.served.driver.num_open == 0)


def test_stopped_answers_free_their_rows():
  engine = fake.Engine(
    lambda prompt, ask: [*b'ab stop'] + [97] * 300, pause_s=0.01
  )
  with running.serving(engine) as server:
    found = server.post(
      '/v1/completions', {'prompt': 'x', 'stop': 'stop', 'max_tokens': 300}
    )
    assert found.json()['choices'][0]['text'] == 'ab '
    running.until(lambda: not engine.has_work)
    assert dict(server.served.driver.num_ended) == {'stop': 1}
