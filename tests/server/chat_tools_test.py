# SPDX-License-Identifier: MIT
"""Tools, thoughts and structured output of a chat."""

import json

import openai
import pytest

from tests.server import fake, running
from tests.server.chat_test import ask, joined

CALL = (
  '<tool_call>\n{"name": "time", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest.mark.parametrize(
  'choice',
  ['auto', 'required', {'type': 'function', 'function': {'name': 'time'}}],
)
@pytest.mark.parametrize('per_step', [1, 7, 100])
def test_tools_are_called(choice, per_step):
  engine = fake.Engine(fake.calling('Well. ', CALL), per_step=per_step)
  wanted = dict(tools=[tool('weather'), tool('time')], tool_choice=choice)
  with running.serving(engine, compiler=Compiler()) as server:
    client = server.client()
    whole = ask(client, **wanted).choices[0]
    assert whole.finish_reason == 'tool_calls'
    (call,) = whole.message.tool_calls
    assert call.function.name == 'time'
    assert json.loads(call.function.arguments) == {'city': 'Oslo'}
    chunks = list(ask(client, stream=True, **wanted))
    first, *rest = told = pieces(chunks)
    assert (first.index, first.type, first.function.name) == (
      0,
      'function',
      'time',
    )
    assert first.id and not any(c.id or c.function.name for c in rest)
    arguments = ''.join(c.function.arguments for c in told)
    assert arguments == call.function.arguments
    assert len(told) > {1: 10, 7: 2, 100: 0}[per_step]
    assert chunks[-1].choices[0].finish_reason == 'tool_calls'
    text, _ = joined(chunks)
    assert text[0] == (whole.message.content or '') == 'Well.'
  is_forced = choice != 'auto'
  assert (engine.asked[0].constraint is not None) == is_forced


@pytest.mark.parametrize('is_parallel, num', [(True, 2), (False, 1)])
def test_parallel_calls_can_be_forbidden(is_parallel, num):
  engine = fake.Engine(fake.calling(CALL, '\n', CALL))
  wanted = dict(tools=[tool('time')], parallel_tool_calls=is_parallel)
  with running.serving(engine) as server, server.client() as client:
    found = ask(client, **wanted)
    chunks = list(ask(client, stream=True, **wanted))
  assert len(found.choices[0].message.tool_calls) == num
  told = {}
  for call in pieces(chunks):
    told[call.index] = told.get(call.index, '') + call.function.arguments
  assert told == dict.fromkeys(range(num), '{"city": "Oslo"}')


@pytest.mark.parametrize('stream', [False, True])
def test_call_that_the_length_cuts_is_told_so_far(stream):
  engine = fake.Engine(fake.calling(CALL), per_step=2)
  with running.serving(engine) as server, server.client() as client:
    found = ask(client, tools=[tool('time')], max_tokens=45, stream=stream)
    if stream:
      chunks = list(found)
      reason = chunks[-1].choices[0].finish_reason
      told = pieces(chunks)
    else:
      reason = found.choices[0].finish_reason
      told = found.choices[0].message.tool_calls
  assert reason == 'length'
  text = ''.join(call.function.arguments for call in told)
  assert text and '{"city": "Oslo"}'.startswith(text) and text[-1] != '}'


HARMONY = fake.TEMPLATE.replace('tool_call', 'tools') + (
  '{# <|channel|>commentary #}'
)
MESSAGES = (
  '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>'
)


@pytest.mark.parametrize('stream', [False, True])
@pytest.mark.parametrize('has_tools', [False, True])
def test_messages_of_harmony_are_told_apart(stream, has_tools):
  ends = 'commentary to=functions.time json<|message|>{"city": "Oslo"}<|call|>'
  ends = ends if has_tools else 'final<|message|>Yes.<|return|>'
  engine = fake.Engine(fake.saying(MESSAGES + ends))
  tools = {'tools': [tool('time')]} if has_tools else {}
  serving = running.serving(engine, target=fake.target(HARMONY))
  with serving as server, server.client() as client:
    found = ask(client, stream=stream, **tools)
    if stream:
      deltas = [chunk.choices[0].delta for chunk in found]
      thought = ''.join(getattr(d, 'reasoning_content', '') for d in deltas)
      content = ''.join(d.content or '' for d in deltas)
      called = [c.function for d in deltas for c in d.tool_calls or ()]
    else:
      message = found.choices[0].message
      thought, content = message.reasoning_content, message.content or ''
      called = [c.function for c in message.tool_calls or ()]
  assert thought == 'Hm.'
  assert content == ('' if has_tools else 'Yes.')
  arguments = ''.join(c.arguments for c in called)
  assert arguments == ('{"city": "Oslo"}' if has_tools else '')


def test_schema_is_answered_in_the_last_message_of_harmony():
  engine = fake.Engine(lambda prompt, ask: [*bytes(prompt[-25:]), fake.END])
  target = fake.target(HARMONY)
  with running.serving(engine, target=target, compiler=Compiler()) as server:
    found = ask(server.client(), response_format={'type': 'json_object'})
  assert found.choices[0].message.content == '<|channel|>final<|message|>'[-25:]


def test_tools_that_must_not_be_called_are_text():
  engine = fake.Engine(fake.calling(CALL))
  with running.serving(engine) as server:
    found = ask(server.client(), tools=[tool('time')], tool_choice='none')
  assert found.choices[0].message.tool_calls is None
  assert '"name": "time"' in found.choices[0].message.content


OPENED = 'assistant\n<think>\n{# </think> #}'


@pytest.mark.parametrize('most', [3, 100])
@pytest.mark.parametrize('stream', [False, True])
def test_thought_is_told_apart(most, stream):
  engine = fake.Engine(fake.saying('Hm, well.</think>\n\nYes </think>.'))
  target = fake.target(fake.TEMPLATE.replace('assistant\n', OPENED))
  with running.serving(engine, target=target) as server:
    found = ask(server.client(), max_tokens=most, stream=stream)
    if stream:
      reasoning = content = ''
      for chunk in found:
        delta = chunk.choices[0].delta
        reasoning += getattr(delta, 'reasoning_content', '')
        content += delta.content or ''
    else:
      message = found.choices[0].message
      reasoning, content = message.reasoning_content, message.content
      details = found.usage.completion_tokens_details
      assert details.reasoning_tokens == len(reasoning)
      assert details.reasoning_tokens <= found.usage.completion_tokens
  if most == 3:
    assert (reasoning, content) == ('Hm,', '')
  else:
    assert (reasoning, content) == ('Hm, well.', 'Yes </think>.')


@pytest.mark.parametrize(
  'wanted, kind',
  [
    ({'type': 'json_object'}, 'json_object'),
    (
      {'type': 'json_schema', 'json_schema': {'name': 'a', 'schema': {}}},
      'json_schema',
    ),
  ],
)
def test_response_format_is_a_constraint(wanted, kind):
  with running.serving(compiler=Compiler()) as server:
    ask(server.client(), response_format=wanted)
    assert server.engine.asked[0].constraint.kind == kind


def test_response_format_without_a_compiler_is_400():
  with running.serving() as server:
    with pytest.raises(openai.BadRequestError) as error:
      ask(server.client(), response_format={'type': 'json_object'})
  assert error.value.param == 'response_format'


def pieces(chunks):
  """What a stream tells of calls."""
  return [
    c for chunk in chunks for c in chunk.choices[0].delta.tool_calls or ()
  ]


def tool(name):
  return {
    'type': 'function',
    'function': {
      'name': name,
      'parameters': {
        'type': 'object',
        'properties': {'city': {'type': 'string'}},
        'required': ['city'],
      },
    },
  }


class Compiler:
  """Takes every grammar."""

  def matcher(self, constraint):
    return None
