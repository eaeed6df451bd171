# SPDX-License-Identifier: MIT
"""What HTTP costs is measured, over a fake engine and over a real one."""

import asyncio
import json
import time
import types

import numpy as np
import pytest

from jspec import errors, loading
from jspec.bench import clients, http, http_report
from jspec.decode import sampling
from jspec.server import replies
from jspec.testing import toy
from tests.serve import small
from tests.server import fake, toy_engine

PARAMS = sampling.SamplingParams(max_tokens=12)


def loaded(template=fake.TEMPLATE):
  return loading.LoadedTarget(
    **vars(fake.target(template)),
    model=toy.target(vocab_size=fake.VOCAB_SIZE, max_len=small.MAX_LEN),
    fingerprint='',
  )


def says(prompt, ask):
  return [97] * ask.params.max_tokens


def measured(engine, target=None, num_turns=2, **changes):
  target = target or loaded()
  return http.run(
    http.served(engine, target),
    http.requests(target, ('ab', 'cde', 'f'), PARAMS),
    **{'concurrencies': (1, 4), 'num_turns': num_turns, **changes},
  )


@pytest.mark.few(1)
@pytest.mark.parametrize('template', [fake.TEMPLATE, None])
def test_both_ways_stream_the_same_tokens(template):
  seen = []
  result = measured(
    fake.Engine(says, pause_s=0.004),
    loaded(template),
    on_progress=lambda *at: seen.append(at),
  )
  assert seen == [(i + 1, 6) for i in range(6)]
  one, four = result['concurrencies']
  lengths = [6, 10, 7]  # Of the three answers.
  for at, num in ((one, 4), (four, 16)):
    wanted = 2 * sum(lengths[i % 3] for i in range(num))
    for of in at['results'].values():
      assert of['num_tokens'] == wanted
    least, most = at['over_direct_range']
    assert least <= at['over_direct'] <= most
    assert at['over_direct'] < at['without_clients']
    assert 0 < at['results']['http']['loop_share'] < 1
    assert at['results']['direct']['client_share'] == 0
  first = one['first_token']
  assert first['over_prefill'] == first['http_s'] / first['prefill_s']
  # Four steps of the fake engine make an answer, the first its first tokens.
  assert 0.004 <= first['direct_s'] < 4 * 0.004
  assert 'first_token' not in four
  said = http_report.table(result)
  assert len(said.splitlines()) == 2 + 4 + 1 + 3
  assert json.loads(json.dumps(result)) == result


@pytest.mark.slow
def test_dear_events_are_seen(monkeypatch):
  """Each event takes half a step of the engine."""
  event = replies.event

  def slowly(value):
    time.sleep(0.01)
    return event(value)

  before = measured(fake.Engine(says, pause_s=0.02), concurrencies=(4,))
  monkeypatch.setattr(replies, 'event', slowly)
  after = measured(fake.Engine(says, pause_s=0.02), concurrencies=(4,))
  before, after = (
    r['concurrencies'][0]['over_direct'] for r in (before, after)
  )
  assert after < 0.8 * before


def test_answers_end_apart_from_each_other():
  found = http.requests(loaded(), ['x'] * 64, PARAMS)
  lengths = [request.ask.params.max_tokens for request in found]
  assert set(lengths) == set(range(6, 13))
  assert lengths == [request.body['max_tokens'] for request in found]
  assert all(lengths[i] != lengths[i + 1] for i in range(63))


def test_answers_of_another_length_are_no_measurement():
  engine = fake.Engine(lambda prompt, ask: [97] * 5)
  with pytest.raises(errors.UserError, match='came'):
    measured(engine)


def test_refusals_are_told():
  target = loaded()
  (request,) = http.requests(target, ['ab'], PARAMS)
  request.body['nonsense'] = 1
  with pytest.raises(errors.UserError, match='nonsense'):
    http.run(
      http.served(fake.Engine(says), target),
      [request],
      concurrencies=(1,),
      num_turns=1,
    )


def test_clients_take_off_what_they_worked():
  turn = http.Turn(10.0, 80, [], client_cpu_s=4.0)
  assert turn.rate == 8.0
  assert turn.without_clients(2) == 10.0


def test_bare_prefill_wants_one_token_and_no_draft():
  (request,) = http.bare(http.requests(loaded(), ['ab'], PARAMS))
  assert request.ask.params.max_tokens == 1 and request.ask.is_plain


@pytest.mark.parametrize('size', [1, 7, 1000])
def test_clients_read_a_stream_cut_anywhere(size):
  """The end of an answer may come in any number of pieces."""
  usage = b'data: {"usage":{"completion_tokens":9}}\n\ndata: [DONE]\n\n'
  answer = (
    b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n'
    + b'%x\r\n%s\r\n' % (len(usage), usage)
    + b'0\r\n\r\n'
  )
  sent, loop = [], asyncio.new_event_loop()
  client = clients.Client(iter([b'one', b'two']), loop.create_future())
  loop.close()
  client.transport = types.SimpleNamespace(write=sent.append)
  client.send()
  for _ in range(2):
    for at in range(0, len(answer), size):
      client.data_received(answer[at : at + size])
  assert sent == [b'one', b'two'] and client.done.result() is None
  assert client.num_tokens == [9, 9] and len(client.first_s) == 2


@pytest.mark.slow
def test_toy_engine_is_measured():
  target, engine = toy_engine.make()
  result = measured(engine, loaded(), num_turns=1)
  for at in result['concurrencies']:
    assert np.isfinite(at['over_direct'])
