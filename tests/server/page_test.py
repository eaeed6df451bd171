# SPDX-License-Identifier: MIT
"""What the page is made of, and the status that it asks for."""

import concurrent.futures
import pathlib
import re

import httpx
import pytest

from jspec.server import limits, status
from jspec.server.page import page
from tests.server import fake, running

FOLDER = pathlib.Path(page.__file__).parent
NAMES = [name for name, _ in page.FILES.values()]


@pytest.fixture(scope='module')
def server():
  with running.serving(limits={'api_keys': ('secret',)}) as found:
    yield found


@pytest.mark.parametrize('path', page.FILES)
def test_files_come_under_the_policy_and_without_a_key(server, path):
  found = server.get(path)
  name, media_type = page.FILES[path]
  assert found.content == (FOLDER / name).read_bytes()
  assert found.headers['content-type'].startswith(media_type)
  policy = dict(
    part.split(' ', 1)
    for part in found.headers['content-security-policy'].split('; ')
  )
  assert policy['default-src'] == "'none'"
  assert policy['script-src'] == policy['style-src'] == "'self'"
  assert policy['frame-ancestors'] == "'none'"
  assert 'unsafe' not in str(policy) and 'http' not in str(policy)
  assert found.headers['x-content-type-options'] == 'nosniff'
  assert path in limits.OPEN


def test_every_file_of_the_folder_is_served():
  there = {p.name for p in FOLDER.iterdir() if p.suffix in ('.html', '.css')}
  there |= {p.name for p in FOLDER.glob('*.js')}
  assert there == set(NAMES)


@pytest.mark.parametrize('name', NAMES)
def test_files_are_short_and_ask_nobody_else(name):
  text = (FOLDER / name).read_text(encoding='utf-8')
  assert 'SPDX-License-Identifier: MIT' in text.splitlines()[name == NAMES[0]]
  assert len(text.splitlines()) <= 400
  assert foreign(text) == []


def foreign(text):
  """What would run text as a program, inline or from elsewhere."""
  text = text.replace('http://www.w3.org/2000/svg', '')  # Names, asks nobody.
  return re.findall(
    r'https?:|//cdn|@import|url\(|innerHTML|outerHTML|insertAdjacentHTML|'
    r'document\.write|\beval\b|new Function|\sstyle=|\son\w+=|srcdoc|'
    r'localStorage',
    text,
  )


@pytest.mark.parametrize(
  'text',
  ['<a onclick="x">', 'x.innerHTML = y', '@import "x"', 'fetch("https://a")'],
)
def test_what_is_foreign_is_found(text):
  assert foreign(text)


def test_files_are_installed():
  source = (FOLDER.parents[2] / 'setup.py').read_text(encoding='utf-8')
  for end in ('html', 'css', 'js'):
    assert f"'server/page/*.{end}'" in source


def test_head_is_answered(server):
  found = httpx.head(server.url + '/')
  assert (found.status_code, found.content) == (200, b'')


def test_status_needs_the_key(server):
  assert server.get('/v1/jspec/status').status_code == 401


def test_status_tells_load_and_speculation():
  engine = fake.Engine(fake.saying('x' * 29), max_rows=2)
  with running.serving(engine) as server:

    def told():
      return server.get('/v1/jspec/status').json()

    first = told()
    assert (first['status'], first['rows']) == ('ready', 2)
    assert (first['running'], first['waiting']) == (0, 0)
    assert first['tokens_per_round'] is None
    engine.gate.clear()
    body = {'model': 'fake', 'prompt': ['a', 'b', 'c']}
    with concurrent.futures.ThreadPoolExecutor() as pool:
      pool.submit(server.post, '/v1/completions', body)
      running.until(lambda: told()['running'] == 2)
      assert told()['waiting'] == 1
      engine.gate.set()
    last = told()
    assert last['num_tokens'] == 90 and last['tokens_per_round'] == 3
    assert last['rounds_by_depth'] == [0, 0, 30]


def test_status_says_what_ails_the_server():
  with running.serving() as server:
    driver = server.served.driver
    assert status.of(server.served)['status'] == 'ready'
    driver.is_draining = True
    assert status.of(server.served)['status'] == 'stopping'
    driver.failure = RuntimeError()
    assert status.of(server.served)['status'] == 'broken'
    driver.failure, engine, driver.engine = None, driver.engine, None
    found = status.of(server.served)
    assert (found['status'], found['rows']) == ('starting', None)
    driver.engine = engine
