# SPDX-License-Identifier: MIT
"""Hermes, Qwen 2.5 and 3, SmolLM: JSON between tags.

  <tool_call>
  {"name": "weather", "arguments": {"city": "Paris"}}
  </tool_call>

One object or a list of them between two tags; a list comes whole. Text in the
arguments may hold the closing tag. At the end of an answer it may be missing.
"""

from jspec.text.formats import calls, growing, json_text

OPEN, CLOSE = '<tool_call>', '</tool_call>'

_KEYS = ('arguments', 'parameters')


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  return calls.marked(view, OPEN, _behind)


def _behind(view, at):
  text = view.text
  opened = growing.opened(text, calls.blank_end(text, at), _KEYS, _end)
  if opened is not None:
    return opened
  # What does not begin as usual is read once, when its end can have come.
  if not view.is_final and text.find(CLOSE, at) < 0:
    return calls.More()
  found = json_text.read_calls(
    text,
    calls.blank_end(text, at),
    keys=_KEYS,
    needs_arguments=False,
  )
  if not isinstance(found, calls.Calls):
    return found
  end = _close(view, found.end)
  return calls.Calls(found.calls, end) if isinstance(end, int) else end


def _end(view):
  """Reads what stands behind the arguments."""
  end = growing.object_end(view.text, 0)
  return calls.closed(view, _close(view, end) if isinstance(end, int) else end)


def _close(view, at):
  at = calls.blank_end(view.text, at)
  if view.is_final and at == len(view.text):
    return at
  return calls.literal(view.text, at, CLOSE)


FORMAT = calls.ToolFormat(
  name='hermes',
  read=read,
  marks=(OPEN, CLOSE),
  layout=calls.Layout(
    call=(
      OPEN,
      '\n{"name": "',
      calls.NAME,
      '", "arguments": ',
      calls.ARGUMENTS,
      '}\n',
      CLOSE,
    ),
    between='\n',
  ),
)
