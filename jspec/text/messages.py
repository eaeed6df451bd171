# SPDX-License-Identifier: MIT
"""Messages of a conversation: what they may be, and as templates expect them.

  {role, content}                             content: a text, or parts of type
                                              text, joined by line breaks
  {role: assistant, content, tool_calls}      content may be null
  {role: tool, content, tool_call_id}         the id may be left out

Arguments of a call are JSON text in OpenAI's API and an object in a template.
What a role means, and other fields, is the template's business.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jspec import errors

Message = Mapping[str, Any]


def check(messages: Any) -> None:
  """Refuses messages that no template can mean."""
  for_template(messages)


def for_template(messages: Any) -> list[dict[str, Any]]:
  """Returns messages as a template expects them.

  Raises:
    UserError: no template can mean them.
  """
  if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
    raise errors.UserError('messages must be a list of {role, content} objects')
  if not messages:
    raise errors.UserError('messages is empty; give at least one message')
  return [_message(message, i) for i, message in enumerate(messages)]


def _message(message, i):
  if not isinstance(message, Mapping):
    raise errors.UserError(f'message {i} is not an object with role, content')
  found = dict(message)
  role, content = message.get('role'), message.get('content')
  if not isinstance(role, str):
    raise errors.UserError(f'message {i}: role is {role!r}, not a string')
  called = message.get('tool_calls')
  if called is None:
    found.pop('tool_calls', None)
  else:
    if role != 'assistant':
      raise errors.UserError(
        f'message {i}: tool_calls in a message of role {role!r}; only the'
        ' assistant calls tools'
      )
    found['tool_calls'] = _calls(called, f'message {i}')
  if content is None and 'tool_calls' in found:
    found['content'] = None
  else:
    found['content'] = _content(content, i)
  call_id = message.get('tool_call_id')
  if call_id is not None and not isinstance(call_id, str):
    raise errors.UserError(
      f'message {i}: tool_call_id is {call_id!r}, not a string'
    )
  return found


def _content(content, i):
  """The text of a message."""
  if isinstance(content, str):
    return content
  if not isinstance(content, list):
    raise errors.UserError(
      f'message {i}: content is {content!r}, not a string or a list of parts'
    )
  texts = []
  for part in content:
    kind = part.get('type') if isinstance(part, Mapping) else None
    if kind != 'text' or not isinstance(part.get('text'), str):
      raise errors.UserError(
        f'message {i}: a content part of type {kind!r} is not supported; give'
        " {type: 'text', text: ...}"
      )
    texts.append(part['text'])
  return '\n'.join(texts)


def _calls(called, where):
  """Calls with their arguments as objects."""
  if not isinstance(called, list) or not called:
    raise errors.UserError(
      f'{where}: tool_calls is {called!r}, not a list of calls; leave it out if'
      ' there are none'
    )
  found = []
  for call in called:
    function = call.get('function') if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(
      function.get('name'), str
    ):
      raise errors.UserError(
        f'{where}: a tool call is not an object with a function of a name and'
        ' arguments'
      )
    arguments = _arguments(function.get('arguments'), where)
    found.append({**call, 'function': {**function, 'arguments': arguments}})
  return found


def _arguments(arguments, where):
  """An object, of JSON text or as it is."""
  if isinstance(arguments, str):
    try:
      # Some clients write no arguments as no text.
      arguments = json.loads(arguments or '{}', parse_constant=_no_json)
    except (ValueError, RecursionError) as error:
      raise errors.UserError(
        f'{where}: the arguments of a tool call are not valid JSON ({error})'
      ) from error
  if not isinstance(arguments, Mapping):
    raise errors.UserError(
      f'{where}: the arguments of a tool call are no JSON object'
    )
  return arguments


def _no_json(constant):
  raise ValueError(f'{constant} is no JSON')
