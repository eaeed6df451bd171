# SPDX-License-Identifier: MIT
"""Hermes, Qwen 2.5 and 3, SmolLM: JSON between tags.

  <tool_call>
  {"name": "weather", "arguments": {"city": "Paris"}}
  </tool_call>

One object or a list of them between two tags. Text in the arguments may hold
the closing tag. At the end of an answer it may be missing.
"""

from jspec.text.formats import calls, json_text

OPEN, CLOSE = '<tool_call>', '</tool_call>'


def read(view: calls.View) -> tuple[calls.Segment, int] | None:
  """Reads the first segment."""
  return calls.marked(view, OPEN, _behind)


def _behind(view, at):
  text = view.text
  # A long call is read once, when its end can have come.
  if not view.is_final and text.find(CLOSE, at) < 0:
    return calls.More()
  found = json_text.read_calls(
    text,
    calls.blank_end(text, at),
    keys=('arguments', 'parameters'),
    needs_arguments=False,
  )
  if not isinstance(found, calls.Calls):
    return found
  end = calls.blank_end(text, found.end)
  if view.is_final and end == len(text):
    return calls.Calls(found.calls, end)
  end = calls.literal(text, end, CLOSE)
  return calls.Calls(found.calls, end) if isinstance(end, int) else end


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
