# SPDX-License-Identifier: MIT
"""Messages as the template of GPT-OSS takes them.

  {content: null, reasoning_content: 'Hm', tool_calls: [..]}
  {content: '',   thinking: 'Hm',          tool_calls: [..]}

The template calls a thought `thinking`, wants a text as content, writes one
call of a message, and no content beside thought and call: there it has it as a
part of the thought.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jspec import errors


def for_template(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
  """Returns the messages.

  Args:
    messages: as `text.messages.for_template` gives them.

  Raises:
    UserError: one has several calls, of which all but one would be lost.
  """
  return [_message(message, i) for i, message in enumerate(messages)]


def _message(message, i):
  found = dict(message)
  if found.get('role') != 'assistant':
    return found
  thought = found.pop('reasoning_content', None)
  if thought and 'thinking' not in found:
    found['thinking'] = thought
  found['content'] = found.get('content') or ''
  called = found.get('tool_calls', ())
  if len(called) > 1:
    raise errors.UserError(
      f'message {i} has {len(called)} tool calls and the chat template writes'
      ' one of a message; give each a message of its own, its result behind it'
    )
  if called and found['content'] and found.get('thinking'):
    found['thinking'] += '\n' + found['content']
    found['content'] = ''
  return found
