# SPDX-License-Identifier: MIT
"""OpenAI's client for Node drives every endpoint.

It is fetched once, as the lock file says, into build/node. Without Node, npm or
their registry the test is skipped, unless JSPEC_NODE=1 says that they are there
(`make test-node`).
"""

import json
import os
import pathlib
import shutil
import subprocess

import pytest

from tests.server import fake, running

HERE = pathlib.Path(__file__).resolve().parent / 'node'
BUILD = HERE.parents[2] / 'build' / 'node'
LOCK = 'package-lock.json'


def absent(reason):
  if os.environ.get('JSPEC_NODE') == '1':
    pytest.fail(reason)
  pytest.skip(reason)


@pytest.fixture(scope='module')
def packages():
  """The folder of packages; npm fetches them if the lock file has changed."""
  npm, lock = shutil.which('npm'), (HERE / LOCK).read_bytes()
  if shutil.which('node') is None or npm is None:
    absent('node or npm is not installed')
  found, mark = BUILD / 'node_modules', BUILD / 'installed'
  if not mark.is_file() or mark.read_bytes() != lock:
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ('package.json', LOCK):
      shutil.copy(HERE / name, BUILD)
    command = [npm, 'ci', '--ignore-scripts', '--no-audit', '--no-fund']
    try:
      subprocess.run(
        command, cwd=BUILD, check=True, capture_output=True, timeout=180
      )
    except subprocess.SubprocessError as error:
      absent(f'npm cannot fetch the client: {error}')
    mark.write_bytes(lock)
  return found


def says(prompt, ask):
  """An answer, or one that nobody waits for."""
  if b'long' in bytes(token for token in prompt if token < 256):
    return [97] * 400
  return fake.chatty(prompt, ask)


@pytest.fixture(scope='module')
def found(packages):
  """What the client understood, and how its requests ended."""
  engine = fake.Engine(says, pause_s=0.01)
  with running.serving(engine, limits={'api_keys': ('secret',)}) as server:
    told = subprocess.run(
      ['node', HERE / 'client.cjs', server.url],
      env={**os.environ, 'NODE_PATH': str(packages)},
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert told.returncode == 0, told.stderr
    running.until(lambda: server.served.driver.num_open == 0)
  ended = dict(server.served.driver.num_ended)
  return {**json.loads(told.stdout), 'ended': ended}


def test_models(found):
  assert found['models'] == ['fake', 'alias']
  assert found['model']['id'] == 'alias'


def test_completions(found):
  whole, chunks = found['completion'], found['completionChunks']
  assert [choice['index'] for choice in whole['choices']] == [0, 1]
  first = whole['choices'][0]
  assert first['text'].startswith('Hi') and first['finish_reason'] == 'stop'
  assert ''.join(first['logprobs']['tokens']) == first['text']
  streamed = ''.join(c['text'] for chunk in chunks for c in chunk['choices'])
  assert 'Hi' + streamed == first['text']
  assert chunks[-1]['usage']['prompt_tokens'] == 2


def test_chat(found):
  (choice,) = found['chat']['choices']
  said = choice['message']['content']
  assert said and choice['finish_reason'] == 'stop'
  tokens = [entry['token'] for entry in choice['logprobs']['content']]
  assert ''.join(tokens).startswith(said)
  assert (
    len(choice['speculative']['origins'])
    == (found['chat']['usage']['completion_tokens'])
  )
  deltas = [chunk['choices'][0]['delta'] for chunk in found['chatChunks']]
  assert ''.join(delta.get('content') or '' for delta in deltas) == said


def test_responses(found):
  text = found['response']['output_text']
  assert text == found['chat']['choices'][0]['message']['content']
  events = found['responseEvents']
  kinds = [event['type'] for event in events]
  assert kinds[0] == 'response.created' and kinds[-1] == 'response.completed'
  deltas = [e['delta'] for e in events if e['type'].endswith('text.delta')]
  assert ''.join(deltas) == text


def test_tokens_and_what_is_refused(found):
  assert found['tokens']['tokens'] == [*b'Hi']
  empty, unknown, absent = found['refusals']
  for refusal in (empty, unknown):
    assert (refusal['kind'], refusal['status']) == ('BadRequestError', 400)
  assert (empty['param'], unknown['param']) == ('prompt', 'audio')
  assert (absent['kind'], absent['code']) == (
    'NotFoundError',
    'model_not_found',
  )


def test_client_that_leaves_ends_its_request(found):
  assert found['stopped'] == 'chat.completion.chunk'
  assert found['ended']['abort'] == 1
