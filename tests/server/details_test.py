# SPDX-License-Identifier: MIT
"""`speculative.details`: how tokens came, the same whole and in chunks."""

import pytest

from tests.server import fake, running

TEXT = 'caf\u00e9 \U0001f642 and an end.'
ASKED = {'details': True}


@pytest.fixture(scope='module')
def server():
  with running.serving(fake.Engine(fake.saying(TEXT), per_step=5)) as found:
    yield found


def chat(client, **wanted):
  return client.chat.completions.create(
    model='fake',
    messages=[{'role': 'user', 'content': 'Hi'}],
    extra_body={'speculative': ASKED},
    **wanted,
  )


def complete(client, **wanted):
  return client.completions.create(
    model='fake', prompt='Hi', extra_body={'speculative': ASKED}, **wanted
  )


@pytest.mark.parametrize('ask', [chat, complete])
@pytest.mark.parametrize('stop', [None, ['and', 'nd an']])
def test_chunks_sum_up_to_the_whole(server, ask, stop):
  client = server.client()
  choice = ask(client, stop=stop).choices[0]
  text = choice.message.content if ask is chat else choice.text
  whole = choice.speculative
  assert text == TEXT.partition('and' if stop else '!')[0]
  assert ''.join(whole['texts']) == text
  assert len(whole['texts']) == len(whole['token_ids'])
  assert len(whole['origins']) == len(whole['token_ids'])
  assert whole['drafted'] >= whole['origins'].count('draft') > 0
  found = [
    chunk.choices[0].speculative
    for chunk in ask(client, stop=stop, stream=True)
  ]
  for name in ('token_ids', 'origins', 'texts'):
    assert sum((part[name] for part in found), []) == whole[name]
  for name in ('rounds', 'drafted'):
    assert sum(part[name] for part in found) == whole[name]
  # Half a character is nothing to show yet.
  assert len(found) > 1 and not any('\ufffd' in t for t in whole['texts'])


def test_nothing_is_told_unasked(server):
  found = server.post(
    '/v1/completions', {'model': 'fake', 'prompt': 'Hi'}
  ).json()
  assert 'speculative' not in found['choices'][0]
