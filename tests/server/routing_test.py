# SPDX-License-Identifier: MIT
"""Routing of requests to drafters, over an engine that decodes nothing."""

import threading

import httpx
import pytest

from jspec import errors
from jspec.routing import base, report
from jspec.server import routes, routing, streams
from tests.server import fake, running

DRAFTERS = ('ngram', 'suffix')
CODE = 'Write a Python function `def add(a, b)` that returns a list of strings.'
MATH = 'How many apples are left if 12 of 30 are sold for 2 dollars each?'


def made(*specs):
  return routes.make(specs, DRAFTERS)


@pytest.fixture(scope='module')
def server():
  found = made('model:fast=suffix,off=none', 'domain:code=suffix')
  with running.serving(routes=found, names=('fake', *found.aliases)) as server:
    yield server


def chat(server, text, **wanted):
  body = {'messages': [{'role': 'user', 'content': text}], **wanted}
  body.setdefault('speculative', {'details': True})
  found = server.post('/v1/chat/completions', body)
  assert found.status_code == 200, found.text
  return found.json()['choices'][0]['speculative']


@pytest.mark.parametrize(
  'text, wanted, drafter, why',
  [
    ('Hello', {}, 'ngram', 'nobody decided'),
    (CODE, {}, 'suffix', 'the prompt looks like code'),
    ('Hello', {'model': 'fast'}, 'suffix', 'of model fast'),
    (CODE, {'model': 'off'}, 'none', 'of model off'),
  ],
)
def test_requests_go_where_they_should(server, text, wanted, drafter, why):
  server.engine.asked.clear()
  found = chat(server, text, **wanted)
  assert (found['drafter'], found['why']) == (drafter, why)
  assert server.engine.asked[0].drafter == drafter
  assert ('draft' in found['origins']) == (drafter != 'none')


@pytest.mark.parametrize('method', [*DRAFTERS, 'none'])
def test_field_wins(server, method):
  server.engine.asked.clear()
  asked = {'details': True, 'method': method}
  found = chat(server, CODE, model='fast', speculative=asked)
  assert (found['drafter'], found['why']) == (method, 'the request names it')
  assert server.engine.asked[0].drafter == method


def test_every_endpoint_is_routed(server):
  for path, body in (
    ('/v1/completions', {'prompt': [CODE, 'Hello'], 'n': 2}),
    ('/v1/responses', {'input': CODE}),
  ):
    server.engine.asked.clear()
    assert server.post(path, body).status_code == 200
    found = [asked.drafter for asked in server.engine.asked]
    wanted = ['suffix', 'suffix', 'ngram', 'ngram']
    assert found == (wanted if path.endswith('completions') else ['suffix'])


def test_every_chunk_says_who_drafts(server):
  body = {
    'messages': [{'role': 'user', 'content': CODE}],
    'stream': True,
    'speculative': {'details': True},
  }
  text = server.post('/v1/chat/completions', body).text
  assert text.count('"drafter":"suffix"') == text.count('"origins"') > 1


def test_aliases_are_models(server):
  names = [model['id'] for model in server.get('/v1/models').json()['data']]
  assert names == ['fake', 'fast', 'off']
  assert server.get('/v1/models/fast').status_code == 200


def test_report_counts_what_was_chosen():
  with running.serving(routes=made('domain:code=suffix')) as server:
    for text in (CODE, CODE, 'Hello'):
      chat(server, text)
    found = server.get('/v1/jspec/routing').json()
  first, second = found['data']
  assert (first['drafter'], first['num_requests']) == ('suffix', 2)
  assert first['why'] == 'the prompt looks like code'
  assert (second['drafter'], second['num_requests']) == ('ngram', 1)
  assert second['num_tokens'] > 0 and second['num_rounds'] > 0
  assert found['learned'] is None


def test_speed_is_learned_by_domain():
  engine = fake.Engine(fake.saying('x' * 60), pause_s=0.005)

  def slow(prompt, ask):
    # Ten times, so that twice shows on a busy machine.
    engine.per_step = 20 if ask.drafter == 'suffix' else 2
    return fake.saying('x' * 60)(prompt, ask)

  engine.says = slow
  with running.serving(engine, routes=made('speed')) as server:
    found = [chat(server, MATH)['drafter'] for _ in range(12)]
    learned = server.get('/v1/jspec/routing').json()['learned']
  assert set(found[:2]) == set(DRAFTERS)
  assert found[-1] == 'suffix'
  assert learned['math']['suffix'] > 2 * learned['math']['ngram']
  assert learned['code'] == {}


class Router:
  """Counts what comes back."""

  def __init__(self):
    self.num_chosen, self.results = 0, []

  def choose(self, request):
    self.num_chosen += 1
    return base.Choice('ngram', 'test')

  def observe(self, choice, result):
    self.results.append(result)


@pytest.mark.parametrize(
  'how', ['ended', 'stopped', 'left', 'refused', 'full', 'broke']
)
def test_every_choice_comes_back_once(how):
  router = Router()
  engine = fake.Engine(fake.saying('x' * 200), max_rows=2, pause_s=0.02)
  body = {'prompt': 'Hi', 'n': 2}
  with running.serving(
    engine, routes=routes.Routes(report.Reported(router)), max_queue=2
  ) as server:
    if how == 'stopped':
      body['stop'] = 'xxxxx'
    elif how == 'full':
      body['n'] = 5
    elif how == 'refused':
      engine.submit = refuse
    elif how == 'broke':
      threading.Thread(target=break_it, args=(engine,)).start()
    if how == 'left':
      with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + '/v1/completions', json=body, timeout=0.5)
    else:
      server.post('/v1/completions', body)
    running.until(lambda: len(router.results) == router.num_chosen)
    running.until(lambda: how == 'broke' or not engine.has_work)
  assert len(router.results) == router.num_chosen == body['n']
  num = [result.num_tokens for result in router.results]
  if how == 'ended':
    assert num == [201, 201]
  elif how in ('refused', 'full'):
    assert set(num) == {0}
  else:
    assert all(n < 201 for n in num) and any(num)


def break_it(engine):
  """In the middle of the first answers."""
  running.until(lambda: engine.metrics.num_tokens)
  engine.broken = OSError()


def refuse(prompt, ask, *, request_id):
  raise errors.UserError('no')


def test_time_of_the_first_tokens_is_that_of_the_others():
  """Ten tokens a second: 1 s for 10 tokens, of which 4 came at once."""
  made = streams.Progress(
    first_s=5.0, last_s=5.6, num_first=4, num_tokens=10, num_rounds=3
  )
  found = routing.result(made)
  assert (found.num_tokens - 1) / found.seconds == pytest.approx(10)
  at_once = streams.Progress(5.0, 5.0, 10, 10, 3)
  assert routing.result(at_once).seconds == 0
  assert routing.result(streams.Progress()) == base.Result(0, 0.0, 0)


@pytest.mark.parametrize(
  'messages, text',
  [
    ([], ''),
    ([{'role': 'system', 'content': 'x'}], ''),
    (
      [
        {'role': 'user', 'content': 'a'},
        {'role': 'user', 'content': [{'text': 'b'}, {'text': 'c'}]},
        {'role': 'tool', 'content': 'd'},
      ],
      'bc',
    ),
  ],
)
def test_last_text_is_the_users(messages, text):
  assert routing.last_text(messages) == text


@pytest.mark.parametrize(
  'spec, told',
  [
    ('fast', 'give model:'),
    ('speed:1', 'give model:'),
    ('model:', 'give model:'),
    ('model:a', "'a'"),
    ('model:a=ngram,a=suffix', "'a=suffix'"),
    ('domain:code=eagle', "'eagle'"),
    ('domain:poems=ngram', "'poems'"),
  ],
)
def test_wrong_routes_are_refused(spec, told):
  with pytest.raises(errors.UserError, match=told):
    made(spec)


def test_routes_decide_in_their_order():
  both = ['domain:code=suffix', 'model:m=ngram']
  request = base.Request('m', None, CODE)
  assert made(*both).router.choose(request).drafter == 'suffix'
  assert made(*both[::-1]).router.choose(request).drafter == 'ngram'


def test_without_drafters_nothing_drafts():
  found = routes.make((), ()).router.choose(base.Request('m', None, 'x'))
  assert found.drafter == 'none'
