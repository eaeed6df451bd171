# SPDX-License-Identifier: MIT
"""Mistral: a mark, then a list of calls, or (newer) a name and arguments.

  [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}]
  [TOOL_CALLS]weather[ARGS]{"city": "Paris"}

Between name and arguments, `[CALL_ID]` may give an id, which is passed over:
the server gives its own.
"""

import re

from jspec.text.formats import calls, growing, json_text

MARK, ARGS, CALL_ID = '[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'

_KEYS = ('arguments',)
_NAME = re.compile(r'[\w.-]{1,256}+')
_ID = re.compile(re.escape(CALL_ID) + r'\w{1,64}+')


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  return calls.marked(view, MARK, _behind)


def _behind(view, at):
  text = view.text
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  if text[at] in '[{':
    is_list = text[at] == '['
    first = calls.blank_end(text, at + 1) if is_list else at
    opened = growing.opened(text, first, _KEYS, _end_item if is_list else _end)
    return opened or json_text.read_calls(
      text, at, keys=_KEYS, needs_arguments=False
    )
  name = _NAME.match(text, at)
  if name is None:
    return None
  at = name.end()
  if text.startswith(CALL_ID, at):
    given = _ID.match(text, at)
    at = given.end() if given else at
  if at == len(text) or CALL_ID.startswith(text[at:]):
    return calls.More()
  at = calls.literal(text, at, ARGS)
  if not isinstance(at, int):
    return at
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  return growing.call(name[0], at) if text[at] == '{' else None


def _end(view):
  """Reads what stands behind the arguments of a single call."""
  return calls.closed(view, growing.object_end(view.text, 0))


def _end_item(view):
  """Reads what stands behind the arguments of a call in a list."""
  end = growing.object_end(view.text, 0)
  return _next(view, end) if isinstance(end, int) else calls.closed(view, end)


def _next(view, at=0):
  """Reads another call of the list, or its end."""
  text = view.text
  at = calls.blank_end(text, at)
  if not text.startswith(',', at):
    return calls.closed(view, calls.literal(text, at, ']'))
  at = calls.blank_end(text, at + 1)
  found = growing.opened(text, at, _KEYS, _end_item)
  if found is not None:
    return calls.Step(found.calls, found.end, found.then)
  found = None
  if not text.startswith('[', at):
    found = json_text.read_calls(text, at, keys=_KEYS, needs_arguments=False)
  if isinstance(found, calls.Calls):
    return calls.Step(found.calls, found.end, _next)
  is_open = isinstance(found, calls.More) and not view.is_final
  return None if is_open else calls.Step('', 0)


FORMAT = calls.ToolFormat(
  name='mistral',
  read=read,
  marks=(MARK, ARGS, CALL_ID),
  layout=calls.Layout(
    before=(MARK, '['),
    call=('{"name": "', calls.NAME, '", "arguments": ', calls.ARGUMENTS, '}'),
    between=', ',
    after=(']',),
  ),
)
