# SPDX-License-Identifier: MIT
"""/v1/responses, driven by the official client."""

import json

import openai
import pytest

from tests.server import chat_test, chat_tools_test, fake, running


@pytest.fixture(scope='module')
def server():
  with running.serving() as found:
    yield found


@pytest.fixture(scope='module')
def client(server):
  return server.client()


def ask(client, **wanted):
  return client.responses.create(
    **{'model': 'fake', 'input': 'Hi', 'temperature': 0, **wanted}
  )


def test_answer_is_that_of_a_chat(client):
  found = ask(client)
  said = chat_test.ask(client).choices[0].message.content
  assert found.output_text == said
  assert (found.status, found.object) == ('completed', 'response')
  assert found.usage.output_tokens == len(said) + 1
  assert found.usage.total_tokens == (
    found.usage.input_tokens + found.usage.output_tokens
  )
  assert found.usage.input_tokens_details.cached_tokens == (
    found.usage.input_tokens // 2
  )


def test_events_tell_the_same_in_order(client):
  whole = ask(client)
  events = list(ask(client, stream=True))
  assert [event.sequence_number for event in events] == list(range(len(events)))
  kinds = [event.type.removeprefix('response.') for event in events]
  deltas = kinds.count('output_text.delta')
  assert kinds == [
    'created',
    'in_progress',
    'output_item.added',
    'content_part.added',
    *['output_text.delta'] * deltas,
    'output_text.done',
    'content_part.done',
    'output_item.done',
    'completed',
  ]
  texts = [e.delta for e in events if e.type == 'response.output_text.delta']
  assert ''.join(texts) == whole.output_text
  assert events[-1].response.output_text == whole.output_text
  assert events[-1].response.usage == whole.usage
  assert events[0].response.output == []


def test_helper_of_the_client_understands_the_stream(client):
  with client.responses.stream(
    model='fake', input='Hi', temperature=0
  ) as stream:
    for _ in stream:
      pass
    found = stream.get_final_response()
  assert found.output_text == ask(client).output_text


def test_cut_answer_is_incomplete(client):
  found = ask(client, max_output_tokens=3)
  assert found.status == 'incomplete'
  assert found.incomplete_details.reason == 'max_output_tokens'
  events = list(ask(client, max_output_tokens=3, stream=True))
  assert events[-1].type == 'response.incomplete'


def test_items_become_a_conversation(client):
  prompt = client.post(
    '/tokenize'.replace('/', '../', 1),
    body={
      'messages': [
        {'role': 'system', 'content': 'Be kind'},
        {'role': 'user', 'content': 'One'},
        {'role': 'assistant', 'content': 'Two'},
        {'role': 'user', 'content': 'Three'},
      ]
    },
    cast_to=object,
  )
  first = ask(
    client,
    instructions='Be kind',
    input=[
      {'role': 'user', 'content': 'One'},
      {
        'type': 'message',
        'id': 'msg_1',
        'status': 'completed',
        'role': 'assistant',
        'content': [{'type': 'output_text', 'text': 'Two', 'annotations': []}],
      },
      {'role': 'user', 'content': [{'type': 'input_text', 'text': 'Three'}]},
    ],
  )
  assert first.usage.input_tokens == prompt['count']


def test_output_can_be_sent_back(client):
  first = ask(client)
  items = [item.to_dict() for item in first.output]
  again = [{'role': 'user', 'content': 'Hi'}, *items]
  assert ask(client, input=[*again, {'role': 'user', 'content': 'And?'}])


def test_logprobs_come_with_include(client):
  wanted = dict(include=['message.output_text.logprobs'], top_logprobs=2)
  found = ask(client, **wanted)
  entries = found.output[0].content[0].logprobs
  assert ''.join(entry.token for entry in entries) == found.output_text
  assert len(entries[-1].top_logprobs) == 2
  events = ask(client, stream=True, **wanted)
  told = []
  for event in events:
    if event.type == 'response.output_text.delta':
      told += [entry.token for entry in event.logprobs]
  assert told == [entry.token for entry in entries]


@pytest.mark.parametrize('stream', [False, True])
def test_tool_call_is_an_item(stream):
  engine = fake.Engine(fake.calling(chat_tools_test.CALL))
  tool = chat_tools_test.tool('time')['function']
  with running.serving(engine, compiler=chat_tools_test.Compiler()) as server:
    found = ask(
      server.client(),
      tools=[{'type': 'function', 'strict': True, **tool}],
      tool_choice={'type': 'function', 'name': 'time'},
      stream=stream,
    )
    if stream:
      events = list(found)
      found = events[-1].response
      told = [
        e.delta
        for e in events
        if e.type == 'response.function_call_arguments.delta'
      ]
      assert ''.join(told) == '{"city": "Oslo"}' and len(told) > 3
      kinds = [e.type for e in events if 'output_item' in e.type]
      assert kinds == [
        'response.output_item.added',
        'response.output_item.done',
      ]
      (done,) = (e for e in events if e.type.endswith('arguments.done'))
      assert (done.arguments, done.name) == (''.join(told), 'time')
  (call,) = found.output
  assert (call.type, call.name) == ('function_call', 'time')
  assert json.loads(call.arguments) == {'city': 'Oslo'}
  assert call.call_id and call.status == 'completed'


def test_tool_results_are_messages():
  from jspec.server import responses_input
  from jspec.server.protocol import responses as protocol

  body = protocol.ResponsesRequest.model_validate_json(
    json.dumps(
      {
        'input': [
          {'role': 'user', 'content': 'x'},
          {
            'type': 'reasoning',
            'id': 'r',
            'summary': [],
            'content': [{'type': 'reasoning_text', 'text': 'Hm'}],
          },
          {
            'type': 'function_call',
            'call_id': 'c',
            'name': 'f',
            'arguments': '{}',
          },
          {'type': 'function_call_output', 'call_id': 'c', 'output': '7'},
        ]
      }
    )
  )
  found = responses_input.messages(body.input, 'Be kind')
  assert [message['role'] for message in found] == [
    'system',
    'user',
    'assistant',
    'tool',
  ]
  assert found[2]['reasoning_content'] == 'Hm'
  assert found[2]['tool_calls'][0]['function']['name'] == 'f'
  assert found[3] == {'role': 'tool', 'tool_call_id': 'c', 'content': '7'}


@pytest.mark.parametrize(
  'field, value',
  [
    ('store', True),
    ('previous_response_id', 'resp_1'),
    ('conversation', 'conv_1'),
    ('background', True),
    ('truncation', 'auto'),
    ('max_tool_calls', 3),
    ('reasoning', {'effort': 'high'}),
    ('include', ['reasoning.encrypted_content']),
    ('top_logprobs', 3),
    ('max_output_tokens', 0),
  ],
)
def test_what_is_not_honoured_is_400_by_name(client, field, value):
  with pytest.raises(openai.BadRequestError) as error:
    ask(client, **{field: value})
  assert error.value.param.split('.')[0] == field


def test_failed_stream_ends_with_response_failed():
  engine = fake.Engine(lambda prompt, ask: [97] * 300, pause_s=0.02)
  with running.serving(engine) as server:
    events = []
    for event in ask(server.client(), stream=True):
      events.append(event)
      if event.type == 'response.output_text.delta':
        engine.broken = RuntimeError('the device is gone')
  assert events[-1].type == 'response.failed'
  assert events[-1].response.error.code == 'server_error'
