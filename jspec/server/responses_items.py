# SPDX-License-Identifier: MIT
"""`Items`: the output of /v1/responses as it grows, and the events of that.

  reasoning     added  text.delta ..  text.done            done
  message       added  part.added  text.delta ..  text.done  part.done  done
  function_call added  arguments.delta ..  arguments.done  done

One item is open at a time; the next closes it. An answer without any text still
has a message, an empty one.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from jspec.text import answers

_REASONING, _MESSAGE, _CALL = 'reasoning', 'message', 'function_call'


class Items:
  """The output of one response.

  Attributes:
    output: the items so far, as they are told.
  """

  def __init__(self):
    self.output = []
    self._open = None

  def take(
    self, told: answers.Answer, logprobs: Sequence[dict[str, Any]]
  ) -> list[dict[str, Any]]:
    """Takes in what became certain; returns the events of it."""
    events, called = [], told.tool_calls
    if called and not called[0].name:  # More of the call that is open.
      events += self._call(called[0])
      called = called[1:]
    if told.reasoning:
      events += self._turn_to(_REASONING)
      self._open['content'][0]['text'] += told.reasoning
      events.append(
        self._event(
          'reasoning_text.delta', content_index=0, delta=told.reasoning
        )
      )
    # Tokens of a call have no place among its events.
    if told.content or logprobs and not told.tool_calls and not self._is_call:
      events += self._turn_to(_MESSAGE)
      part = self._open['content'][0]
      part['text'] += told.content
      part['logprobs'] += logprobs
      events.append(
        self._event(
          'output_text.delta',
          content_index=0,
          delta=told.content,
          logprobs=list(logprobs),
        )
      )
    for call in called:
      events += self._turn_to(_CALL, call) + self._call(call)
    return events

  def finish(self, status: str) -> list[dict[str, Any]]:
    """Closes what is open; `status` is 'completed' or 'incomplete'."""
    events = [] if self.output else self._turn_to(_MESSAGE)
    return events + self._close(status)

  @property
  def _is_call(self):
    return self._open is not None and self._open['type'] == _CALL

  def _call(self, call):
    """More arguments of the call that is open."""
    if not call.arguments:
      return []
    self._open['arguments'] += call.arguments
    return [self._event('function_call_arguments.delta', delta=call.arguments)]

  def _turn_to(self, kind, call=None):
    """Opens an item, unless it is the one that is open."""
    if self._open is not None and self._open['type'] == kind and call is None:
      return []
    events = self._close('completed')
    item = {'id': f'{_PREFIX[kind]}_{secrets.token_hex(12)}', 'type': kind}
    item['status'] = 'in_progress'
    if kind == _CALL:
      item |= {
        'call_id': f'call_{secrets.token_hex(12)}',
        'name': call.name,
        'arguments': '',
      }
    elif kind == _REASONING:
      item |= {'summary': [], 'content': []}
    else:
      item |= {'role': 'assistant', 'content': []}
    self._open = item
    self.output.append(item)
    events.append(self._event('output_item.added', item=_copy(item)))
    if kind == _REASONING:
      item['content'].append({'type': 'reasoning_text', 'text': ''})
    elif kind == _MESSAGE:
      part = {
        'type': 'output_text',
        'text': '',
        'annotations': [],
        'logprobs': [],
      }
      item['content'].append(part)
      events.append(
        self._event('content_part.added', content_index=0, part=_copy(part))
      )
    return events

  def _close(self, status):
    item = self._open
    if item is None:
      return []
    events = []
    if item['type'] == _CALL:
      events.append(
        self._event(
          'function_call_arguments.done',
          name=item['name'],
          arguments=item['arguments'],
        )
      )
    else:
      part = item['content'][0]
      if item['type'] == _REASONING:
        events.append(
          self._event('reasoning_text.done', content_index=0, text=part['text'])
        )
      else:
        events += [
          self._event(
            'output_text.done',
            content_index=0,
            text=part['text'],
            logprobs=part['logprobs'],
          ),
          self._event('content_part.done', content_index=0, part=_copy(part)),
        ]
    item['status'] = status
    events.append(self._event('output_item.done', item=_copy(item)))
    self._open = None
    return events

  def _event(self, kind, **fields):
    found = {'type': f'response.{kind}', 'output_index': len(self.output) - 1}
    if 'item' not in fields:
      found['item_id'] = self._open['id']
    return found | fields


_PREFIX = {_REASONING: 'rs', _MESSAGE: 'msg', _CALL: 'fc'}


def _copy(value):
  """As it is now; what is told must not change behind it."""
  if isinstance(value, dict):
    return {name: _copy(part) for name, part in value.items()}
  return [_copy(part) for part in value] if isinstance(value, list) else value
