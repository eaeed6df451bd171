# SPDX-License-Identifier: MIT
"""What is served over HTTP is what the target says, drafts or none."""

import concurrent.futures

import pytest

from tests.server import toy_engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def made():
  return toy_engine.make()


@pytest.fixture(scope='module')
def server(made):
  with toy_engine.serving(made[1]) as found:
    yield found


@pytest.mark.parametrize(
  'params', [{'temperature': 0.0}, {'temperature': 0.9, 'seed': 3}]
)
@pytest.mark.parametrize('method', ['ngram', 'none'])
def test_served_text_is_that_of_plain_decoding(server, made, params, method):
  texts = toy_engine.prompts()
  expected = toy_engine.expected(made[0], texts, **params)
  assert len(set(expected)) > len(texts) // 2
  client = server.client()

  def ask(text):
    found = client.completions.create(
      model='fake',
      prompt=text,
      max_tokens=toy_engine.MAX_TOKENS,
      extra_body={'speculative': {'method': method, 'details': True}},
      **params,
    )
    streamed = client.completions.create(
      model='fake',
      prompt=text,
      max_tokens=toy_engine.MAX_TOKENS,
      stream=True,
      **params,
    )
    return found, ''.join(c.choices[0].text for c in streamed if c.choices)

  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    found = list(pool.map(ask, texts))
  assert [whole.choices[0].text for whole, _ in found] == expected
  assert [text for _, text in found] == expected
  counts = [whole.usage.completion_tokens_details for whole, _ in found]
  assert (sum(count.drafted for count in counts) > 0) == (method == 'ngram')
  for (whole, _), count in zip(found, counts, strict=True):
    num = whole.usage.completion_tokens
    # A round gives its accepted drafts and one token more.
    assert num <= count.rounds + count.accepted
    assert count.accepted <= count.drafted


def test_prompt_logprobs_are_echoed(server):
  found = server.client().completions.create(
    model='fake', prompt='abcabcabc', echo=True, logprobs=3, max_tokens=4
  )
  said = found.choices[0].logprobs
  assert ''.join(said.tokens) == found.choices[0].text
  assert said.token_logprobs[0] is None
  assert all(value < 0 for value in said.token_logprobs[1:])
  for token, value, top in zip(
    said.tokens[1:9],
    said.token_logprobs[1:9],
    said.top_logprobs[1:9],
    strict=True,
  ):
    assert top[token] == value
    assert len(top) in (3, 4)
