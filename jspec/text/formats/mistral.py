# SPDX-License-Identifier: MIT
"""Mistral: a mark, then a list of calls, or (newer) a name and arguments.

  [TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}]
  [TOOL_CALLS]weather[ARGS]{"city": "Paris"}

Between name and arguments, `[CALL_ID]` may give an id, which is passed over:
the server gives its own.
"""

import re

from jspec.text.formats import calls, json_text

MARK, ARGS, CALL_ID = '[TOOL_CALLS]', '[ARGS]', '[CALL_ID]'

_NAME = re.compile(r'[\w.-]{1,256}+')
_ID = re.compile(re.escape(CALL_ID) + r'\w{1,64}+')


def read(view: calls.View) -> tuple[calls.Segment, int] | None:
  """Reads the first segment."""
  return calls.marked(view, MARK, _behind)


def _behind(view, at):
  text = view.text
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  if text[at] in '[{':
    return json_text.read_calls(
      text, at, keys=('arguments',), needs_arguments=False
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
  value = json_text.scan(text, at)
  if not isinstance(value, json_text.Value):
    return value
  call = json_text.call(name[0], text[at : value.end])
  return calls.Calls((call,), value.end) if call else None


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
