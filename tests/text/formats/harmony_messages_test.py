# SPDX-License-Identifier: MIT
"""Messages reach GPT-OSS's template in the shape that it takes."""

import pytest

from jspec import errors
from jspec.text import chat
from jspec.text.formats import harmony, harmony_messages

CALL = {'id': 'c', 'function': {'name': 'f', 'arguments': {}}}


def shaped(**message):
  (found,) = harmony_messages.for_template([{'role': 'assistant', **message}])
  return {name: found[name] for name in found if name != 'role'}


def test_thought_and_content_have_the_names_of_the_template():
  assert shaped(content='Hi') == {'content': 'Hi'}
  found = shaped(content=None, reasoning_content='Hm', tool_calls=[CALL])
  assert found == {'content': '', 'thinking': 'Hm', 'tool_calls': [CALL]}
  # Beside thought and call the template has no place for content.
  found = shaped(content='Plan', reasoning_content='Hm', tool_calls=[CALL])
  assert (found['thinking'], found['content']) == ('Hm\nPlan', '')
  user = {'role': 'user', 'content': 'x', 'reasoning_content': 'y'}
  assert harmony_messages.for_template([user]) == [user]


def test_calls_that_would_be_lost_are_refused():
  with pytest.raises(errors.UserError, match='message 0 has 2 tool calls'):
    shaped(content='', tool_calls=[CALL, CALL])


def test_only_templates_of_harmony_get_them():
  source = (
    '{% for m in messages %}{{ m.thinking }}|{{ m.content }}{% endfor %}'
    f'{{# {harmony.SIGN} #}}'
  )
  message = {'role': 'assistant', 'content': 'a', 'reasoning_content': 'b'}

  def rendered(text):
    template = chat.ChatTemplate(text)
    return template.render([message], add_generation_prompt=False)

  assert rendered(source) == 'b|a'
  assert rendered(source.replace(harmony.SIGN, '')) == '|a'
