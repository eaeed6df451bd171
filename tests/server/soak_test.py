# SPDX-License-Identifier: MIT
"""Thousands of requests, many of them hostile: nothing leaks, nobody suffers.

Clients leave at any point, send what is no JSON or no UTF-8, bodies that are
too large, half a request, or read one byte at a time. Afterwards rows, pages,
tasks, files and memory are where they were, and every answer that was waited
for is what plain decoding says.
"""

import concurrent.futures
import gc
import json
import os
import random
import resource
import socket
import time

import httpx
import pytest

from tests.server import running, toy_engine

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('optimised')]

NUM_REQUESTS = 2000
NUM_CLIENTS = 12
MAX_BODY = 50_000
KINDS = (
  *['whole'] * 5,
  *['stream'] * 5,
  *['leaving', 'leaving whole', 'slow reader', 'half', 'malformed'] * 2,
  *['huge', 'bad utf-8', 'no HTTP', 'unknown field', 'long prompt'],
)


def body(text, **more):
  return {
    'prompt': text,
    'temperature': 0,
    'max_tokens': toy_engine.MAX_TOKENS,
    **more,
  }


class Clients:
  """Sends requests of all kinds.

  Attributes:
    wrong: answers that were not what they must be.
    num: requests by kind that were sent.
  """

  def __init__(self, server, answers):
    self._server, self._answers = server, answers
    self._texts = list(answers)
    self._http = httpx.Client(timeout=60)
    host, port = server.url.removeprefix('http://').split(':')
    self._address = host, int(port)
    self.wrong, self.num = [], {}

  def close(self):
    self._http.close()

  def send(self, number):
    rng = random.Random(number)
    kind = rng.choice(KINDS)
    self.num[kind] = self.num.get(kind, 0) + 1
    text = rng.choice(self._texts)
    try:
      getattr(self, '_' + kind.replace(' ', '_').replace('-', '_'))(text, rng)
    except AssertionError as error:
      self.wrong.append((number, kind, str(error)[:300]))

  def _post(self, **content):
    return self._http.post(self._server.url + '/v1/completions', **content)

  def _link(self, raw, length=None):
    link = socket.create_connection(self._address, timeout=60)
    size = len(raw) if length is None else length
    head = f'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {size}'
    link.sendall(head.encode() + b'\r\n\r\n' + raw)
    return link

  def _whole(self, text, rng):
    found = self._post(json=body(text, n=rng.choice((1, 1, 2))))
    if found.status_code == 429:
      return
    assert found.status_code == 200, found.text
    for choice in found.json()['choices']:
      assert choice['text'] == self._answers[text]

  def _stream(self, text, rng):
    del rng
    found = self._post(json=body(text, stream=True))
    if found.status_code == 429:
      return
    events = found.text.strip().split('\n\n')
    assert events[-1] == 'data: [DONE]'
    said = [json.loads(e.removeprefix('data: ')) for e in events[:-1]]
    assert (
      ''.join(e['choices'][0]['text'] for e in said) == (self._answers[text])
    )
    assert said[-1]['choices'][0]['finish_reason'] in ('stop', 'length')

  def _leaving(self, text, rng):
    raw = json.dumps(body(text, stream=True, n=rng.choice((1, 3)))).encode()
    with self._link(raw) as link:
      link.recv(rng.choice((1, 200, 900)))

  def _leaving_whole(self, text, rng):
    with self._link(json.dumps(body(text)).encode()):
      time.sleep(rng.random() / 20)

  def _slow_reader(self, text, rng):
    raw = json.dumps(body(text, stream=True)).encode()
    with self._link(raw) as link:
      found = b''
      while b'[DONE]' not in found and b' 429 ' not in found:
        part = link.recv(rng.choice((1, 7, 90)))
        assert part, found
        found += part
        if rng.random() < 0.02:
          time.sleep(0.01)

  def _half(self, text, rng):
    raw = json.dumps(body(text)).encode()
    with self._link(raw[: rng.randrange(len(raw))], len(raw)):
      time.sleep(rng.random() / 50)

  def _malformed(self, text, rng):
    raw = json.dumps(body(text)).encode()
    cut = rng.randrange(1, len(raw))
    self._refused(raw[:cut] + rng.choice((b'', b']', b'NaN')))

  def _bad_utf_8(self, text, rng):
    del text
    self._refused(b'{"prompt": "' + rng.choice((b'\xff', b'\xc3(')) + b'"}')

  def _unknown_field(self, text, rng):
    del rng
    self._refused(json.dumps(body(text, nonsense=1)).encode())

  def _long_prompt(self, text, rng):
    del rng
    self._refused(json.dumps(body(text * 99)).encode())

  def _refused(self, raw):
    found = self._post(content=raw)
    assert found.status_code == 400, found.text
    assert set(found.json()['error']) == {'message', 'type', 'param', 'code'}

  def _huge(self, text, rng):
    del text
    with self._link(b'x' * rng.randrange(100), 10**9) as link:
      assert b' 413 ' in link.recv(64)

  def _no_HTTP(self, text, rng):
    del text
    with socket.create_connection(self._address, timeout=60) as link:
      link.sendall(rng.randbytes(rng.randrange(1, 300)) + b'\r\n\r\n')
      time.sleep(rng.random() / 100)


def footprint():
  """Megabytes and open files of this process."""
  gc.collect()
  with open('/proc/self/statm', encoding='ascii') as file:
    pages = int(file.read().split()[1])
  size = pages * resource.getpagesize() / 2**20
  return size, len(os.listdir('/proc/self/fd'))


def test_nothing_leaks_and_every_answer_is_right():
  target, engine = toy_engine.make()
  texts = toy_engine.prompts()
  answers = dict(zip(texts, toy_engine.expected(target, texts), strict=True))
  limits = {'max_body': MAX_BODY, 'body_s': 5.0}
  with toy_engine.serving(engine, limits=limits, max_queue=24) as server:
    clients = Clients(server, answers)
    with concurrent.futures.ThreadPoolExecutor(NUM_CLIENTS) as pool:
      list(pool.map(clients.send, range(NUM_REQUESTS // 4)))
      at_rest(server)
      before = footprint()
      list(pool.map(clients.send, range(NUM_REQUESTS // 4, NUM_REQUESTS)))
    at_rest(server)
    clients.close()
    after = footprint()
    assert clients.wrong == []
    assert set(clients.num) == set(KINDS)
    assert after[0] - before[0] < 30, (before, after)
    assert after[1] <= before[1] + 2, (before, after)
    assert server.get('/health').status_code == 200
    ended = server.served.driver.num_ended
    assert ended['abort'] > 20 and ended['stop'] + ended['length'] > 500


def at_rest(server):
  """Waits until nobody wants anything; then nothing may be left."""
  driver = server.served.driver
  running.until(lambda: driver.num_open == 0 and not driver.engine.has_work)
  scheduler = driver.engine._scheduler
  scheduler.check()
  assert scheduler.num_running == scheduler.num_waiting == 0
  ledger = scheduler.ledger
  ledger.forget()
  assert ledger.num_available == scheduler.config.num_pages
  assert driver._open == {} and driver._ids == {}
  state = server._server.server_state
  running.until(lambda: not state.tasks)
