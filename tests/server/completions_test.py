# SPDX-License-Identifier: MIT
"""/v1/completions, driven by the official client."""

import openai
import pytest

from tests.server import fake, running


@pytest.fixture(scope='module')
def server():
  with running.serving() as found:
    yield found


@pytest.fixture(scope='module')
def client(server):
  return server.client()


def texts(stream):
  found = {}
  for chunk in stream:
    for choice in chunk.choices:
      found[choice.index] = found.get(choice.index, '') + choice.text
  return found


def expected(prompt, **params):
  tokens = fake.chatty(prompt.encode(), running_ask(**params))
  return bytes(tokens[:-1]).decode()


def running_ask(**params):
  from jspec.decode import sampling
  from jspec.serve import asks

  return asks.Ask(params=sampling.SamplingParams(**params))


def test_text_is_the_engines(client):
  found = client.completions.create(model='fake', prompt='Hi', temperature=0)
  assert found.choices[0].text == expected('Hi')
  assert found.choices[0].finish_reason == 'stop'
  assert found.usage.prompt_tokens == 2
  assert found.usage.prompt_tokens_details.cached_tokens == 1
  assert found.usage.completion_tokens == len(expected('Hi')) + 1
  assert found.object == 'text_completion'


def test_stream_is_the_same(client):
  stream = client.completions.create(
    model='fake',
    prompt='Hi',
    temperature=0,
    stream=True,
    stream_options={'include_usage': True},
  )
  chunks = list(stream)
  assert texts(chunks) == {0: expected('Hi')}
  assert chunks[-1].usage.completion_tokens == len(expected('Hi')) + 1
  assert chunks[-1].choices == []
  assert all(chunk.usage is None for chunk in chunks[:-1])


def test_prompts_and_choices_have_places(client):
  found = client.completions.create(
    model='fake', prompt=['a', 'b'], n=2, seed=3, temperature=1
  )
  assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
  assert len({choice.text for choice in found.choices}) == 4
  assert found.usage.prompt_tokens == 2
  ids = client.completions.create(
    model='fake', prompt=[[97], [98]], n=2, seed=3, temperature=1
  )
  assert [c.text for c in ids.choices] == [c.text for c in found.choices]


def test_cached_tokens_count_once_a_prompt(client):
  found = client.completions.create(
    model='fake', prompt=['abcd', 'ef'], n=3, temperature=0
  )
  usage = found.usage
  assert (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens) == (
    6,
    3,
  )


def test_max_tokens_ends_with_length(client):
  found = client.completions.create(
    model='fake', prompt='Hi', temperature=0, max_tokens=4
  )
  assert found.choices[0].text == expected('Hi')[:4]
  assert found.choices[0].finish_reason == 'length'
  assert found.usage.completion_tokens == 4


def test_echo_and_logprobs_agree_in_text(client):
  prompt = '\n42 is'
  found = client.completions.create(
    model='fake',
    prompt=prompt,
    temperature=0,
    echo=True,
    logprobs=2,
    max_tokens=3,
  )
  choice = found.choices[0]
  assert choice.text == prompt + expected(prompt)[:3]
  said = choice.logprobs
  assert ''.join(said.tokens) == choice.text
  offsets = [len(''.join(said.tokens[:i])) for i in range(len(said.tokens))]
  assert said.text_offset == offsets
  assert said.token_logprobs[0] is None and said.top_logprobs[0] is None
  assert said.token_logprobs[1:] == [-0.25] * (len(offsets) - 1)
  assert len(said.top_logprobs[1]) == 2


def test_echo_without_tokens_scores_the_prompt(client):
  found = client.completions.create(
    model='fake', prompt='abc', echo=True, logprobs=0, max_tokens=0
  )
  assert found.choices[0].text == 'abc'
  assert found.choices[0].logprobs.tokens == ['a', 'b', 'c']
  assert found.choices[0].finish_reason == 'length'
  assert found.usage.completion_tokens == 0


def test_streamed_logprobs_are_the_same(client):
  wanted = dict(
    model='fake', prompt='xyz', temperature=0, echo=True, logprobs=1
  )
  whole = client.completions.create(**wanted).choices[0]
  chunks = list(client.completions.create(**wanted, stream=True))
  parts = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs]
  for field in ('tokens', 'token_logprobs', 'text_offset', 'top_logprobs'):
    joined = sum((getattr(part, field) for part in parts), [])
    assert joined == getattr(whole.logprobs, field)


def test_unknown_model_is_404(client):
  with pytest.raises(openai.NotFoundError) as error:
    client.completions.create(model='other', prompt='x')
  assert error.value.code == 'model_not_found'


@pytest.mark.parametrize('more', [0, 1, 9 * fake.CONTEXT_LEN])
@pytest.mark.parametrize('max_tokens', [None, 5])
@pytest.mark.parametrize('stream', [False, True])
def test_long_prompt_is_400_with_both_numbers(client, more, max_tokens, stream):
  size = fake.CONTEXT_LEN + more
  with pytest.raises(openai.BadRequestError) as error:
    client.completions.create(
      model='fake', prompt='x' * size, max_tokens=max_tokens, stream=stream
    )
  assert error.value.code == 'context_length_exceeded'
  assert str(fake.CONTEXT_LEN) in error.value.body['message']
  message = error.value.body['message']
  assert str(size) in message and '-' not in message


def test_answer_has_all_the_room_there_is(client, server):
  size = fake.CONTEXT_LEN - 3
  server.engine.asked.clear()
  client.completions.create(model='fake', prompt='x' * size, temperature=0)
  assert server.engine.asked[0].params.max_tokens == 3


@pytest.mark.parametrize('stream', [False, True])
def test_tokens_say_what_they_show(stream):
  engine = fake.Engine(fake.saying('a🙂b<stop> c'), per_step=3)
  with running.serving(engine) as server:
    found = server.client().completions.create(
      model='fake',
      prompt='x',
      stop='<stop>',
      stream=stream,
      extra_body={'speculative': {'details': True}},
    )
    choices = [c.choices[0] for c in found] if stream else found.choices
  texts, ids, origins = [], [], []
  for choice in choices:
    texts += choice.speculative['texts']
    ids += choice.speculative['token_ids']
    origins += choice.speculative['origins']
  assert ''.join(texts) == ''.join(choice.text for choice in choices) == 'a🙂b'
  assert bytes(ids).decode() == 'a🙂b<stop>'
  assert len(origins) == len(ids) and set(origins) <= {
    'draft',
    'bonus',
    'plain',
  }


def test_ids_of_padded_rows_are_no_text():
  """A head has more rows than the vocabulary has tokens."""
  engine = fake.Engine(lambda prompt, ask: [97, 300, 98, fake.END])
  with running.serving(engine, vocab_size=320) as server:
    found = server.post(
      '/v1/completions', {'prompt': 'x', 'logprobs': 1, 'stream': False}
    ).json()
  assert found['choices'][0]['text'] == 'ab'
  assert found['choices'][0]['logprobs']['tokens'] == ['a', '', 'b']
  assert found['usage']['completion_tokens'] == 4


def test_character_that_the_prompt_began_is_the_answers():
  face = '🙂'.encode()
  engine = fake.Engine(lambda prompt, ask: [*face[2:], *b'!', fake.END])
  with running.serving(engine) as server:
    body = {'prompt': list(b'x' + face[:2]), 'logprobs': 0, 'echo': True}
    choice = server.post('/v1/completions', body).json()['choices'][0]
  assert choice['text'] == 'x🙂!'
  assert ''.join(choice['logprobs']['tokens']) == 'x🙂!'
