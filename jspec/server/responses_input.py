# SPDX-License-Identifier: MIT
"""From the items of /v1/responses to the messages of a chat.

reasoning, message, function_call, function_call  ->  one assistant message
function_call_output                              ->  a message of the tool
"""

from collections.abc import Sequence
from typing import Any

from jspec.server.protocol import responses as protocol

_OF_ASSISTANT = (protocol.FunctionCall, protocol.Reasoning)


def messages(
  given: str | Sequence[protocol.Item], instructions: str | None
) -> list[dict[str, Any]]:
  """The conversation."""
  found = []
  if instructions is not None:
    found.append({'role': 'system', 'content': instructions})
  if isinstance(given, str):
    return [*found, {'role': 'user', 'content': given}]
  last = None
  for item in given:
    if isinstance(item, _OF_ASSISTANT):
      last = _same_turn(found, last)
      _add(last, item)
    elif isinstance(item, protocol.FunctionCallOutput):
      last = None
      found.append(
        {
          'role': 'tool',
          'tool_call_id': item.call_id,
          'content': _text(item.output),
        }
      )
    elif item.role == 'assistant':
      if last is None or 'content' in last:
        last = _same_turn(found, None)
      last['content'] = _text(item.content)
    else:
      last = None
      found.append({'role': item.role, 'content': _text(item.content)})
  return found


def _same_turn(found, last):
  """The assistant's turn that goes on, or a new one."""
  if last is None:
    last = {'role': 'assistant'}
    found.append(last)
  return last


def _add(turn, item):
  if isinstance(item, protocol.Reasoning):
    thought = _text(item.content or [])
    turn['reasoning_content'] = turn.get('reasoning_content', '') + thought
    return
  turn.setdefault('tool_calls', []).append(
    {
      'id': item.call_id,
      'type': 'function',
      'function': {'name': item.name, 'arguments': item.arguments},
    }
  )


def _text(content):
  if isinstance(content, str):
    return content
  return ''.join(part.text for part in content)
