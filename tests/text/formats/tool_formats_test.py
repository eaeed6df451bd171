# SPDX-License-Identifier: MIT
"""What is particular to each format of calls."""

import json

import pytest

from jspec.text import answers
from jspec.text.formats import deepseek, detection
from tests.text.formats import samples


def parse(name, text, schemas=None):
  form = answers.Format(tools=detection.named(name), schemas=schemas or {})
  return answers.parse(text, form)


def names(name, text):
  return [call.name for call in parse(name, text).tool_calls]


def test_hermes_takes_a_list_and_a_missing_end():
  one = '{"name": "f", "arguments": {"a": 1}}'
  other = '{"name": "g"}'
  assert names('hermes', f'<tool_call>[{one}, {other}]</tool_call>') == [
    'f',
    'g',
  ]
  assert names('hermes', f'<tool_call>{one}\n') == ['f']
  # What stands before the end is part of no call.
  found = parse('hermes', f'<tool_call>{one} x</tool_call>')
  assert found.content == '} x</tool_call>'
  (call,) = found.tool_calls
  assert call.arguments == '{"a": 1}'
  # A mark that opens nothing does not hide the call behind it.
  found = parse('hermes', f'As <tool_call> or <tool_call>{one}</tool_call>')
  assert found.content == 'As <tool_call> or'
  assert [call.name for call in found.tool_calls] == ['f']


def test_llama_takes_answers_that_are_calls_only():
  one = '{"name": "f", "parameters": {"a": 1}}'
  assert names('llama_json', f'{one}; {one}\n{one}') == ['f'] * 3
  assert names('llama_json', f'Hm. <|python_tag|>{one};{one}') == ['f', 'f']
  for text in (
    f'I call {one}',
    '{"name": "Ada", "age": 36}',
    '{"city": "Paris"}',
    f'[{one}]',
    '<|python_tag|>print(1)',
  ):
    assert parse('llama_json', text) == answers.Answer(content=text)


def test_llama_shows_other_json_while_it_comes():
  deltas = answers.Deltas(answers.Format(tools=detection.named('llama_json')))
  assert deltas.push('{"na').content == ''
  assert deltas.push('tion": "Fr').content == '{"nation": "Fr'


def test_mistral_takes_ids_of_calls_in_both_forms():
  old = '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "a1"}]'
  assert names('mistral', old) == ['f']
  new = '[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[CALL_ID]a1[ARGS]{"a": 1}'
  assert names('mistral', new) == ['f', 'g']
  for text in ('[TOOL_CALLS]f{}', '[TOOL_CALLS]f[CALL_ID][ARGS]{}'):
    assert parse('mistral', text) == answers.Answer(content=text)


def test_deepseek_gives_all_calls_of_one_pair_of_marks():
  one = f'{deepseek.CALL}f{deepseek.SEP}{{}}{deepseek.CALL_END}'
  assert names('deepseek', f'{deepseek.BEGIN}{one}\n{one}{deepseek.END}') == [
    'f',
    'f',
  ]
  assert names('deepseek', f'{deepseek.BEGIN}{one}') == ['f']
  found = parse('deepseek', f'{deepseek.BEGIN}{one}x{deepseek.END}')
  assert [call.name for call in found.tool_calls] == ['f']
  assert found.content == f'{deepseek.CALL_END}x{deepseek.END}'


@pytest.mark.parametrize(
  'schema, text, want',
  [
    (None, '12', '12'),
    ({'type': 'string'}, '12', '12'),
    ({'type': ['string', 'null']}, '12', '12'),
    ({'enum': ['12', 'a']}, '12', '12'),
    ({'type': 'integer'}, ' 12 ', 12),
    ({'type': 'integer'}, 'twelve', 'twelve'),
    ({'type': 'number'}, '1, 2', '1, 2'),
    ({'type': 'boolean'}, 'True', True),
    ({'type': 'boolean'}, 'false', False),
    ({'anyOf': [{'type': 'integer'}, {'type': 'null'}]}, 'None', None),
    ({'anyOf': [{'type': 'integer'}, {'type': 'string'}]}, '12', '12'),
    ({'type': 'array'}, '[1,\n "a"]', [1, 'a']),
    ({'$ref': '#/$defs/point'}, '{"x": 1}', {'x': 1}),
    ({'type': 'object'}, '{"x": ', '{"x": '),
    ({'type': 'string'}, '\n a\n\n', '\n a\n\n'),
    ({'type': 'string'}, 'a "b" </tool_call> \\', 'a "b" </tool_call> \\'),
    ({'type': 5}, '12', 12),
  ],
)
def test_coder_values_are_what_the_schema_says(schema, text, want):
  schemas = {'f': {'properties': {'a': schema} if schema else {}}}
  whole = (
    '<tool_call>\n<function=f>\n<parameter=a>\n'
    f'{text}\n</parameter>\n</function>\n</tool_call>'
  )
  (call,) = parse('qwen_coder', whole, schemas).tool_calls
  assert json.loads(call.arguments) == {'a': want}


def test_coder_keeps_the_digits_of_numbers():
  schemas = {'f': {'properties': {'a': {'type': 'number'}}}}
  digits = '1' * 5000
  whole = samples.WRITERS['qwen_coder'][1]('f', {'a': digits})
  (call,) = parse('qwen_coder', whole, schemas).tool_calls
  assert call.arguments == f'{{"a": {digits}}}'


def test_coder_ends_where_a_parameter_is_given_twice():
  value = '<parameter=a>\n1\n</parameter>\n'
  text = f'<tool_call>\n<function=f>\n{value * 2}</function>\n</tool_call>'
  found = parse('qwen_coder', text)
  assert found.tool_calls[0].arguments == '{"a": "1"'
  assert found.content == f'{value}</function>\n</tool_call>'
