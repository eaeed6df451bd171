# SPDX-License-Identifier: MIT
"""/v1/chat/completions, driven by the official client."""

import openai
import pytest

from tests.server import fake, running

USER = [{'role': 'user', 'content': 'Hi'}]


@pytest.fixture(scope='module')
def server():
  with running.serving() as found:
    yield found


@pytest.fixture(scope='module')
def client(server):
  return server.client()


def ask(client, **wanted):
  return client.chat.completions.create(
    **{'model': 'fake', 'messages': USER, 'temperature': 0, **wanted}
  )


def joined(stream):
  """Content and finish reason of each choice."""
  text, reasons = {}, {}
  for chunk in stream:
    for choice in chunk.choices:
      said = choice.delta.content or ''
      text[choice.index] = text.get(choice.index, '') + said
      if choice.finish_reason is not None:
        assert choice.index not in reasons
        reasons[choice.index] = choice.finish_reason
  return text, reasons


def test_stream_and_whole_answer_agree(client):
  whole = ask(client).choices[0]
  assert whole.message.role == 'assistant' and whole.message.content
  text, reasons = joined(ask(client, stream=True))
  assert text == {0: whole.message.content}
  assert reasons == {0: whole.finish_reason}


def test_first_chunk_says_the_role(client):
  first = next(iter(ask(client, stream=True)))
  assert first.object == 'chat.completion.chunk'
  assert first.choices[0].delta.role == 'assistant'


def test_usage_comes_last_if_asked(client):
  chunks = list(
    ask(client, stream=True, stream_options={'include_usage': True})
  )
  assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0
  assert all(chunk.usage is None for chunk in chunks[:-1])
  assert all(chunk.usage is None for chunk in ask(client, stream=True))


@pytest.mark.parametrize('stream', [False, True])
def test_choices_differ_and_come_again(client, stream):
  wanted = dict(n=3, seed=7, temperature=1, stream=stream)

  def texts():
    found = ask(client, **wanted)
    if stream:
      text, reasons = joined(found)
      assert reasons == {0: 'stop', 1: 'stop', 2: 'stop'}
      return [text[i] for i in range(3)]
    return [choice.message.content for choice in found.choices]

  assert len(set(texts())) == 3
  assert texts() == texts()


def test_requests_without_a_seed_differ(client):
  found = {
    ask(client, temperature=1.2).choices[0].message.content for _ in range(20)
  }
  assert len(found) > 15


def test_first_choice_has_the_seed_of_the_request(client, server):
  server.engine.asked.clear()
  ask(client, n=2, seed=11, temperature=1)
  ask(client, seed=-5, temperature=1)
  seeds = [asked.params.seed for asked in server.engine.asked]
  assert seeds[0] == 11 and seeds[1] != 11 and 0 <= seeds[2] < 2**32


@pytest.mark.parametrize('top', [None, 0, 5])
def test_logprobs_work_with_and_without_a_number(client, top):
  found = ask(client, logprobs=True, top_logprobs=top or openai.omit)
  entries = found.choices[0].logprobs.content
  assert ''.join(e.token for e in entries) == found.choices[0].message.content
  assert all(len(entry.top_logprobs) == (top or 0) for entry in entries)
  assert entries[0].bytes == list(entries[0].token.encode())


def test_streamed_logprobs_are_the_same(client):
  whole = ask(client, logprobs=True, top_logprobs=2).choices[0]
  found = []
  for chunk in ask(client, logprobs=True, top_logprobs=2, stream=True):
    found += chunk.choices[0].logprobs.content
  assert found == whole.logprobs.content


@pytest.mark.parametrize(
  'fields, param',
  [
    ({'logprobs': True, 'top_logprobs': 21}, 'top_logprobs'),
    ({'top_logprobs': 2}, 'top_logprobs'),
    ({'stop': ''}, 'stop'),
    ({'stop': ['']}, 'stop'),
    ({'stop': ['a', '']}, 'stop'),
    ({'n': 0}, 'n'),
    ({'temperature': 2.5}, 'temperature'),
    ({'temperature': 1e-9}, None),
    ({'max_tokens': 0}, 'max_tokens'),
    ({'max_tokens': 2, 'max_completion_tokens': 3}, 'max_tokens'),
    ({'logit_bias': {'x': 1}}, 'logit_bias'),
    ({'logit_bias': {'5': 101}}, 'logit_bias'),
    ({'stream_options': {'include_usage': True}}, 'stream_options'),
    ({'store': True}, 'store'),
    ({'service_tier': 'flex'}, 'service_tier'),
    ({'modalities': ['text', 'audio']}, 'modalities'),
    ({'audio': {'voice': 'x', 'format': 'wav'}}, 'audio'),
    ({'prediction': {'type': 'content', 'content': 'x'}}, 'prediction'),
    ({'reasoning_effort': 'high'}, 'reasoning_effort'),
    ({'web_search_options': {}}, 'web_search_options'),
    ({'functions': [{'name': 'f'}]}, 'functions'),
    ({'tool_choice': 'required'}, 'tool_choice'),
    ({'seed': 2**64}, 'seed'),
  ],
)
def test_what_is_not_honoured_is_400_by_name(client, fields, param):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, **fields)
  assert error.value.body['type'] == 'invalid_request_error'
  assert param is None or error.value.param.split('.')[0] == param


def test_unknown_fields_are_named(client):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, extra_body={'frobnicate': 1})
  assert error.value.param == 'frobnicate'
  assert error.value.code == 'unknown_parameter'
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, messages=[{'role': 'user', 'content': 'x', 'colour': 'red'}])
  assert error.value.param == 'messages.0.colour'


def test_what_asks_for_nothing_is_taken(client):
  plain = ask(client).choices[0].message.content
  found = ask(
    client,
    user='me',
    metadata={'a': 'b'},
    store=False,
    n=1,
    service_tier='auto',
    modalities=['text'],
    safety_identifier='x',
    prompt_cache_key='y',
    frequency_penalty=0,
    stop=[],
    parallel_tool_calls=True,
    tool_choice='auto',
    response_format={'type': 'text'},
  )
  assert found.choices[0].message.content == plain


def test_fields_reach_the_engine(client, server):
  server.engine.asked.clear()
  ask(
    client,
    temperature=0.7,
    top_p=0.5,
    frequency_penalty=0.5,
    presence_penalty=-1,
    logit_bias={'65': -100, '66': 3},
    max_completion_tokens=9,
    seed=4,
    logprobs=True,
    top_logprobs=3,
    extra_body={
      'top_k': 7,
      'min_p': 0.1,
      'repetition_penalty': 1.2,
      'min_tokens': 2,
      'stop_token_ids': [65],
      'speculative': {
        'method': 'suffix',
        'max_draft_tokens': 1,
        'depth_policy': 'static',
      },
    },
  )
  (asked,) = server.engine.asked
  params, options = asked.params, asked.options
  assert (params.temperature, params.top_p, params.top_k) == (0.7, 0.5, 7)
  assert (params.min_p, params.seed, params.max_tokens) == (0.1, 4, 9)
  assert params.stop_ids == (fake.END, 65)
  assert (options.frequency_penalty, options.presence_penalty) == (0.5, -1)
  assert options.logit_bias == ((65, -100), (66, 3))
  assert (options.repetition_penalty, options.min_tokens) == (1.2, 2)
  assert (asked.num_logprobs, asked.num_prompt_logprobs) == (3, None)
  assert (asked.drafter, asked.max_drafts) == ('suffix', 1)
  assert asked.policy == 'static'


@pytest.mark.parametrize('stop', [None, [], ['zzz'], openai.omit])
def test_end_of_turn_stays_whatever_stop_says(client, server, stop):
  server.engine.asked.clear()
  assert ask(client, stop=stop).choices[0].finish_reason == 'stop'
  assert server.engine.asked[0].params.stop_ids == (fake.END,)


def test_default_sampling_is_openais(client, server):
  server.engine.asked.clear()
  client.chat.completions.create(model='fake', messages=USER)
  params = server.engine.asked[0].params
  assert (params.temperature, params.top_p) == (1.0, 1.0)
  assert params.max_tokens > 400


@pytest.mark.parametrize(
  'wanted, drafted',
  [
    ({}, True),
    ({'method': 'ngram'}, True),
    ({'method': 'none'}, False),
    ({'max_draft_tokens': 0}, False),
  ],
)
def test_drafts_are_counted_on_demand(client, wanted, drafted):
  body = {'speculative': {'details': True, **wanted}}
  found = ask(client, extra_body=body)
  counts = found.usage.completion_tokens_details
  cached = found.usage.prompt_tokens_details.cached_tokens
  assert cached == found.usage.prompt_tokens // 2
  assert (counts.drafted > 0) == drafted
  assert counts.accepted == counts.accepted_prediction_tokens
  assert counts.rejected_prediction_tokens == counts.drafted - counts.accepted
  origins = found.choices[0].speculative['origins']
  assert len(origins) == found.usage.completion_tokens
  assert origins.count('draft') == counts.accepted
  assert ('draft' in origins) == drafted
  streamed = []
  for chunk in ask(client, extra_body=body, stream=True):
    streamed += chunk.choices[0].speculative['origins']
  assert streamed == origins
  assert not hasattr(ask(client).choices[0], 'speculative')


def test_unknown_depth_policy_is_400(client):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, extra_body={'speculative': {'depth_policy': 'deep'}})
  assert error.value.param == 'speculative.depth_policy'
  assert 'dcut, static' in error.value.message


def test_unknown_drafter_is_400(client):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, extra_body={'speculative': {'method': 'eagle9'}})
  assert error.value.param == 'speculative.method'
  assert 'ngram' in error.value.message


@pytest.mark.parametrize('per_step', [1, 2, 5, 50])
@pytest.mark.parametrize('stream', [False, True])
def test_stop_string_ends_text_and_count(per_step, stream):
  engine = fake.Engine(fake.saying('one\n\nUser: two'), per_step=per_step)
  with running.serving(engine) as server:
    client = server.client()
    wanted = dict(stop=['\n\nUser'], max_tokens=12)
    if stream:
      text, reasons = joined(ask(client, stream=True, **wanted))
      assert (text[0], reasons[0]) == ('one', 'stop')
    else:
      found = ask(client, **wanted)
      assert found.choices[0].message.content == 'one'
      assert found.choices[0].finish_reason == 'stop'
      assert found.usage.completion_tokens == len('one\n\nUser')
    running.until(lambda: not engine.has_work)


@pytest.mark.parametrize('most', range(1, 15))
def test_delivered_tokens_are_those_that_are_counted(most):
  engine = fake.Engine(fake.saying('twelve chars'), per_step=5)
  with running.serving(engine) as server:
    found = ask(server.client(), max_tokens=most)
  text = found.choices[0].message.content
  assert text == 'twelve chars'[:most]
  assert found.usage.completion_tokens == min(most, 13)
  reason = 'stop' if most >= 13 else 'length'
  assert found.choices[0].finish_reason == reason


def test_characters_are_never_cut():
  engine = fake.Engine(fake.saying('a🙂한é'), per_step=3)
  with running.serving(engine) as server:
    chunks = list(ask(server.client(), stream=True))
  parts = [chunk.choices[0].delta.content or '' for chunk in chunks]
  assert ''.join(parts) == 'a🙂한é'
  assert not any('\ufffd' in part for part in parts)
