# SPDX-License-Identifier: MIT
"""Calls as Python writes them: literals become JSON, anything else is text."""

import json

import pytest

from jspec.text import answers
from jspec.text.formats import calls, python_text, pythonic

WHAT = answers.Format(tools=pythonic.FORMAT)


def parse(text):
  return answers.parse(text, WHAT)


@pytest.mark.parametrize(
  'text, want',
  [
    ('1', 1),
    (' -2.5', -2.5),
    ('1_000', 1000),
    ("'a'", 'a'),
    ("'it\\'s \"x\"'", 'it\'s "x"'),
    ('"a" \'b\'', 'ab'),
    ("'''a\n'b'''", "a\n'b"),
    ("''", ''),
    ("'\\d \\x41 \\u00e9\\n'", '\\d A \u00e9\n'),
    ('"\u6771 ), ]"', '\u6771 ), ]'),
    ('True', True),
    ('null', None),
    ('[1, (2, 3), [None]]', [1, [2, 3], [None]]),
    ("{'a': {'b': [true]}}", {'a': {'b': [True]}}),
    ('"\\/"', '/'),  # As JSON has it.
  ],
)
def test_literal_becomes_json(text, want):
  assert python_text.end(text + ')', 0) == len(text)
  assert json.loads(python_text.to_json(text)) == want


@pytest.mark.parametrize(
  'text',
  ['x', 'f(1)', '1 + 1', "b'a'", "f'{x}'", '{1, 2}', '{1: 2}', '1j', '...']
  + [
    "'\\ud800'",
    '[x for x in y]',
    '',
    '--1',
    '**a',
    '{**a}',
    '(yield)',
    '[[1',
  ],
)
def test_anything_else_is_refused(text):
  end = python_text.end(text + ')', 0)
  value = python_text.to_json(text)
  assert value is None or not isinstance(end, int)


def test_numbers_keep_their_digits():
  digits = '1' * 5000
  (call,) = parse(f'[f(n={digits})]').tool_calls
  assert call.arguments == f'{{"n": {digits}}}'


def test_list_of_calls():
  text = "[weather(city='Paris', days=3), time(), f.g-h(a=[1],)]"
  assert parse(text) == answers.Answer(
    tool_calls=(
      calls.ToolCall(name='weather', arguments='{"city": "Paris", "days": 3}'),
      calls.ToolCall(name='time', arguments='{}'),
      calls.ToolCall(name='f.g-h', arguments='{"a": [1]}'),
    )
  )
  for tag in pythonic.OPENS:
    assert parse(tag + text + pythonic.CLOSE) == parse(text)
    assert parse(f'\n{tag} {text}') == parse(text)


@pytest.mark.parametrize(
  'text',
  [
    '[1, 2, 3]',
    "['a', f(b=1)]",
    '[f(x)]',
    '[f(x) for x in y]',
    '[f(x=y)]',
    '[f(x=open("a"))]',
    '[f',
    'So: [f(x=1)]',
    'f(x=1)',
    '[f (x=1)]',
  ],
)
def test_other_lists_are_text(text):
  assert parse(text) == answers.Answer(content=text)


def test_what_is_torn_ends_its_call():
  found = parse('[f(a=1, a=2)]')
  assert found.tool_calls[0].arguments == '{"a": 1'
  assert found.content == ', a=2)]'
  found = parse('[f(a=1), g]')
  assert found.tool_calls[0].arguments == '{"a": 1}'
  assert found.content == ', g]'
  deep = '[' * 300 + ']' * 300
  assert parse(f'[f(a={deep}x)]').tool_calls == ()
