# SPDX-License-Identifier: MIT
"""Drafters that change while the server runs, over a fake engine."""

import json
import logging
import threading

import numpy as np
import pytest

from jspec import errors
from jspec.serve import metrics
from jspec.server import logs, swaps
from tests.server import fake, running

PATH = '/v1/jspec/drafters'
KEY = {'Authorization': 'Bearer hidden'}
SPECS = {'ngram': 'ngram,num_draft_tokens=2', 'suffix': 'suffix'}


def load(spec):
  if spec == 'none':
    return None
  if 'broken' in spec:
    raise errors.UserError(f'{spec} holds no drafter:\nnothing at all')
  return 'other' if 'other' in spec else spec


def serving(engine=None, specs=SPECS, **limits):
  return running.serving(
    engine,
    limits={'admin_keys': ('hidden',), **limits},
    swaps=swaps.Swaps(specs, load, built_in=('ngram', 'suffix')),
  )


@pytest.fixture
def folders(tmp_path):
  for name in ('new', 'other', 'broken'):
    (tmp_path / name).mkdir()
  return tmp_path


def test_drafter_is_swapped_and_told(folders):
  engine = fake.Engine()
  with serving(engine) as server:
    before = server.get(PATH, headers=KEY).json()['data']
    assert [one['id'] for one in before] == ['ngram', 'suffix']
    assert [one['version'] for one in before] == [0, 0]
    assert before[0]['source'] == SPECS['ngram']
    path = str(folders / 'new')
    found = server.post(f'{PATH}/ngram', {'path': path}, headers=KEY)
    assert found.status_code == 200
    # Programs were compiled for the options it had.
    spec = path + ',num_draft_tokens=2'
    assert (found.json()['version'], found.json()['source']) == (1, spec)
    assert engine.swapped == [(spec, 'ngram')]
    own = f'{path},num_draft_tokens=3'
    server.post(f'{PATH}/ngram', {'path': own}, headers=KEY)
    server.post(f'{PATH}/suffix', {'path': path}, headers=KEY)
    assert engine.swapped[1:] == [(own, 'ngram'), (path, 'suffix')]
    model = server.get('/v1/models').json()['data'][0]
    assert model['drafter_versions'] == {'ngram': 2, 'suffix': 3}


def test_counts_begin_with_the_swap(folders):
  engine = fake.Engine()

  def count(num):
    counts = np.array([num, num])
    engine.metrics.by_drafter['ngram'] = metrics.Drafted(
      num, num, counts, counts
    )

  with serving(engine) as server:
    one = server.get(PATH, headers=KEY).json()['data'][0]
    assert one['num_tokens'] == one['num_drafted'] == 0
    count(5)
    body = {'path': str(folders / 'new')}
    found = server.post(f'{PATH}/ngram', body, headers=KEY).json()
    assert found['num_tokens'] == found['num_drafted'] == 0
    count(7)
    one, other = server.get(PATH, headers=KEY).json()['data']
    assert (one['num_rounds'], one['num_accepted']) == (2, 4)
    assert other['num_rounds'] == 0


def test_nobody_may_without_the_key_or_the_flag(folders):
  body = {'path': str(folders / 'new')}
  wrong = {'Authorization': 'Bearer mine'}
  with serving(api_keys=('mine',)) as server:
    for headers in ({}, wrong):
      assert server.get(PATH, headers=headers).status_code == 401
      found = server.post(f'{PATH}/ngram', body, headers=headers)
      assert found.status_code == 401
    assert server.get('/v1/models', headers=KEY).status_code == 401
    assert server.get('/v1/models', headers=wrong).status_code == 200
  with serving() as server:  # Others need none.
    assert server.get('/v1/models').status_code == 200
  for found in (running.serving(), serving(admin_keys=())):
    with found as server:
      assert server.get(PATH, headers=KEY).status_code == 404
      found = server.post(f'{PATH}/ngram', body, headers=KEY)
      assert found.status_code == 404


@pytest.mark.parametrize(
  'name, body, status, message',
  [
    ('ngram', {'path': '/nowhere'}, 400, "no folder '/nowhere'"),
    ('ngram', {'path': 'os:getcwd'}, 400, 'no folder'),
    ('ngram', {'path': 'suffix'}, 400, 'no folder'),
    ('ngram', {'path': '{folders}/broken'}, 400, 'holds no drafter'),
    ('ngram', {'path': '{folders}/other'}, 400, 'another method'),
    ('other', {'path': '{folders}/new'}, 404, "no drafter 'other'"),
    ('ngram', {}, 400, 'path'),
    ('ngram', {'path': '{folders}/new', 'more': 1}, 400, 'more'),
  ],
)
def test_what_cannot_be_swapped_is_told_in_a_line(
  folders, name, body, status, message
):
  body = {
    key: value.format(folders=folders) if isinstance(value, str) else value
    for key, value in body.items()
  }
  engine = fake.Engine()
  with serving(engine) as server:
    found = server.post(f'{PATH}/{name}', body, headers=KEY)
    assert found.status_code == status
    said = found.json()['error']['message']
    assert message in said and '\n' not in said
    assert engine.swapped == []
    told = server.get(PATH, headers=KEY).json()['data']
    assert [one['source'] for one in told] == list(SPECS.values())


def test_streams_go_on_while_a_drafter_loads(folders):
  """The event loop and the engine wait for nobody who loads."""
  may_load = threading.Event()
  engine = fake.Engine(lambda prompt, ask: [97] * 400, pause_s=0.002)

  def slowly(spec):
    assert may_load.wait(20)
    return spec

  with running.serving(
    engine,
    limits={'admin_keys': ('hidden',)},
    swaps=swaps.Swaps(SPECS, slowly),
  ) as server:
    body = {'path': str(folders / 'new')}
    asking = threading.Thread(
      target=server.post, args=(f'{PATH}/ngram', body), kwargs={'headers': KEY}
    )
    stream = server.client().completions.create(
      model='fake', prompt='x', max_tokens=400, stream=True
    )
    text = next(stream).choices[0].text
    asking.start()
    for chunk in stream:
      text += chunk.choices[0].text
      if len(text) > 200:
        may_load.set()
    asking.join(20)
    assert text == 'a' * 400
    assert len(engine.swapped) == 1


def test_all_are_loaded_again_and_one_that_cannot_be_stays(folders, caplog):
  caplog.set_level(logging.INFO, logs.LOGGER)
  engine = fake.Engine()
  specs = {
    'suffix': str(folders / 'broken'),
    'ngram': str(folders / 'new') + ',a=1',
  }

  with serving(engine, specs) as server:
    running.run(server.served.swaps.again(server.served))
    assert engine.swapped == [(specs['ngram'], 'ngram')]
  told = [json.loads(logs.Lines().format(record)) for record in caplog.records]
  events = {line['event']: line for line in told}
  assert events['drafter swapped']['version'] == 1
  assert events['drafter kept']['name'] == 'suffix'
  assert '\n' not in events['drafter kept']['reason']


def test_server_without_swaps_tells_no_versions():
  with running.serving() as server:
    (first, _) = server.get('/v1/models').json()['data']
  assert 'drafter_versions' not in first


def test_built_in_drafters_are_not_loaded_again():
  engine = fake.Engine()
  with serving(engine) as server:
    running.run(server.served.swaps.again(server.served))
  assert engine.swapped == []
