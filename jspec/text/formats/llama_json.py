# SPDX-License-Identifier: MIT
"""Llama 3.1 to 3.3: an answer that is a JSON object, or several.

  {"name": "weather", "parameters": {"city": "Paris"}}
  <|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}

Without the tag only an answer that begins so is a call; more of them may
follow, with or without a semicolon. An object whose first member is another is
a plain answer and is shown while it comes.
"""

import re

from jspec.text.formats import calls, growing, json_text

TAG = '<|python_tag|>'

_FIRST_KEY = re.compile(r'\{\s*"([^"\\]*)"')
_ARGUMENTS = ('parameters', 'arguments')
_KEYS = ('name', 'type', *_ARGUMENTS)


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  if view.is_start or view.follows_call:
    text = view.text
    at = calls.blank_end(text, 0)
    if view.follows_call and text.startswith(';', at):
      at = calls.blank_end(text, at + 1)
    found = calls.More() if at == len(text) else _object(view, at)
    if found is None and text.startswith(TAG[0], at):
      at = calls.literal(text, at, TAG)
      found = at if not isinstance(at, int) else _object(view, at)
    if isinstance(found, calls.Calls):
      return calls.Step(found.calls, found.end, found.then)
    if isinstance(found, calls.More) and not view.is_final:
      return None
  return calls.marked(view, TAG, _object)


def _object(view, at):
  text = view.text
  at = calls.blank_end(text, at)
  key = _FIRST_KEY.match(text, at)
  if text[at : at + 1] == '[' or key and key[1] not in _KEYS:
    return None
  opened = growing.opened(text, at, _ARGUMENTS, _end)
  return opened or json_text.read_calls(
    text, at, keys=_ARGUMENTS, needs_arguments=True
  )


def _end(view):
  return calls.closed(view, growing.object_end(view.text, 0))


FORMAT = calls.ToolFormat(
  name='llama_json',
  read=read,
  marks=(TAG,),
  layout=calls.Layout(
    call=(
      '{"name": "',
      calls.NAME,
      '", "parameters": ',
      calls.ARGUMENTS,
      '}',
    ),
    between='; ',
  ),
)
