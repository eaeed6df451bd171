# SPDX-License-Identifier: MIT
"""A drafter is swapped under streams of a toy engine, which tell the same."""

import concurrent.futures
import pathlib

import pytest

from jspec.drafters import ngram
from jspec.server import swaps
from jspec.testing import toy
from tests.serve import small
from tests.server import fake, running, toy_engine

pytestmark = pytest.mark.slow
KEY = {'Authorization': 'Bearer hidden'}


def test_streams_go_on_unharmed(tmp_path):
  target = toy.target(vocab_size=fake.VOCAB_SIZE, max_len=small.MAX_LEN)
  drafters = {str(i): toy.drafter(target, seed=i) for i in range(5)}
  drafters['other'] = ngram.NGram(2)
  for name in drafters:
    (tmp_path / name).mkdir()
  engine = small.make(target, drafters['0'])
  texts = toy_engine.prompts()
  expected = toy_engine.expected(target, texts)
  versions = []
  with toy_engine.serving(
    engine,
    limits={'admin_keys': ('hidden',)},
    swaps=swaps.Swaps(
      {'ngram': 'first'}, lambda spec: drafters[pathlib.Path(spec).name]
    ),
  ) as server:
    client = server.client()

    def stream(text):
      chunks = client.completions.create(
        model='fake',
        prompt=text,
        max_tokens=toy_engine.MAX_TOKENS,
        temperature=0,
        stream=True,
      )
      return ''.join(chunk.choices[0].text for chunk in chunks)

    def swap(name):
      return server.post(
        '/v1/jspec/drafters/ngram',
        {'path': str(tmp_path / name)},
        headers=KEY,
      )

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
      streams = [pool.submit(stream, text) for text in texts]
      for i in range(1, 5):
        # The swaps are spread over the streams.
        until = i * len(texts) // 5
        running.until(lambda n=until: sum(s.done() for s in streams) >= n)
        is_busy = not all(s.done() for s in streams)
        versions.append((swap(str(i)).json()['version'], is_busy))
      found = [stream.result(60) for stream in streams]
    refused = swap('other')
    told = server.get('/v1/jspec/drafters', headers=KEY).json()['data'][0]
  assert found == expected
  assert versions == [(i, True) for i in range(1, 5)]
  assert refused.status_code == 400
  assert 'another method' in refused.json()['error']['message']
  assert told['source'] == str(tmp_path / '4')
  assert told['version'] == engine.version == 4
