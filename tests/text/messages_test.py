# SPDX-License-Identifier: MIT
"""Messages as templates expect them, and what is refused."""

import pytest

from jspec import errors
from jspec.text import messages


def called(arguments='{}', **changes):
  function = {'name': 'f', 'arguments': arguments}
  return {
    'role': 'assistant',
    'tool_calls': [{'id': 'a', 'type': 'function', 'function': function}],
  } | changes


def test_messages_are_given_as_templates_expect_them():
  given = [
    {'role': 'developer', 'content': 'x', 'name': 'n'},
    {
      'role': 'user',
      'content': [{'type': 'text', 'text': t} for t in ('a', 'b')],
    },
    called('{"a": [1, null]}'),
    called({'a': 1}, content='so'),
    called(''),
    {'role': 'assistant', 'content': 'y', 'tool_calls': None},
    {'role': 'tool', 'content': '', 'tool_call_id': 'a'},
  ]
  kept = repr(given)
  found = messages.for_template(given)
  assert found[0] == given[0]
  assert found[1] == {'role': 'user', 'content': 'a\nb'}
  arguments = [m['tool_calls'][0]['function']['arguments'] for m in found[2:5]]
  assert arguments == [{'a': [1, None]}, {'a': 1}, {}]
  assert [m['content'] for m in found[2:5]] == [None, 'so', None]
  assert found[5] == {'role': 'assistant', 'content': 'y'}
  assert found[6] == given[6]
  assert repr(given) == kept  # What was given stays as it was.


@pytest.mark.parametrize(
  'given, named',
  [
    ([], 'empty'),
    ('hello', 'list'),
    (None, 'list'),
    (['hello'], 'message 0'),
    ([{'role': 'user'}], 'content'),
    ([{'role': 'user', 'content': 5}], 'content is 5'),
    ([{'role': 'assistant', 'content': None}], 'content is None'),
    ([{'content': 'x'}], 'role'),
    (
      [{'role': 'user', 'content': [{'type': 'image_url'}]}],
      "part of type 'image_url'",
    ),
    ([{'role': 'user', 'content': [{'type': 'text'}]}], "type 'text'"),
    ([{'role': 'user', 'content': ['x']}], 'part of type None'),
    ([called(role='user')], "role 'user'"),
    ([called(tool_calls=[])], 'tool_calls is '),
    ([called(tool_calls=['f'])], 'a tool call is not'),
    ([called(tool_calls=[{'function': {}}])], 'a tool call is not'),
    ([called('{"a": ')], 'not valid JSON'),
    ([called('{"a": NaN}')], 'NaN is no JSON'),
    ([called('[' * 100_000)], 'not valid JSON'),
    ([called('[1]')], 'no JSON object'),
    ([called(None)], 'no JSON object'),
    ([{'role': 'tool', 'content': 'x', 'tool_call_id': 5}], 'tool_call_id'),
  ],
)
def test_malformed_messages_are_refused(given, named):
  with pytest.raises(errors.UserError, match=named) as caught:
    messages.check(given)
  assert '\n' not in str(caught.value)
