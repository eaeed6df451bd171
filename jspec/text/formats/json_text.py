# SPDX-License-Identifier: MIT
"""JSON that is still being written: complete, unfinished, or no JSON at all.

  '{"a": [1, "}'   unfinished      '{"a": 1} x'  complete, 8 characters
  '{"a" 1'         none, whatever follows

The parser of the standard library cannot tell the last two apart from the
first. Members are given as places in the text, so that the arguments of a call
stay as the model wrote them: numbers keep all their digits.
"""

import dataclasses
import json
import re

from jspec.text.formats import calls

# Deeper than any schema, and far from the limit of recursive parsers.
MAX_DEPTH = 256

_BLANK = re.compile(r'[ \t\n\r]*+')
_PLAIN, _ESCAPE = r'[^"\\\x00-\x1f]*+', r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})'
_STRING_OPEN = rf'"{_PLAIN}(?:{_ESCAPE}{_PLAIN})*+'
_STRING = re.compile(_STRING_OPEN + '"')
_NUMBER = r'-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+'
_SCALAR = re.compile(rf'{_STRING_OPEN}"|{_NUMBER}|true|false|null')
# What may still become a scalar if the text goes on.
_UNFINISHED = re.compile(
  rf'{_STRING_OPEN}(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z|[-+.eE0-9]++\Z|'
  r't(?:ru?)?\Z|f(?:a(?:ls?)?)?\Z|n(?:ul?)?\Z'
)


@dataclasses.dataclass(frozen=True)
class Value:
  """A complete object or list.

  Attributes:
    end: the place behind it.
    members: name (None in a list), start and end of each of its values.
  """

  end: int
  members: tuple[tuple[str | None, int, int], ...]


def scan(text: str, at: int) -> Value | calls.More | None:
  """Reads the object or list at `at`; None: there is none."""
  if at == len(text):
    return calls.More()
  if text[at] not in '{[':
    return None
  stack, members = [], []
  wanted, key, start = 'value', None, at
  while True:
    at = _BLANK.match(text, at).end()
    if at == len(text):
      return calls.More()
    char = text[at]
    if wanted in ('value', 'value or end') and char in '{[':
      if len(stack) == MAX_DEPTH:
        return None
      start = at if len(stack) == 1 else start
      stack.append(char)
      wanted = 'key or end' if char == '{' else 'value or end'
      at += 1
    elif wanted.endswith('end') and char == {'{': '}', '[': ']'}[stack[-1]]:
      stack.pop()
      at += 1
      if not stack:
        return Value(at, tuple(members))
      if len(stack) == 1:
        members.append((key, start, at))
      wanted = 'comma or end'
    elif wanted == 'comma or end' and char == ',':
      wanted = 'key' if stack[-1] == '{' else 'value'
      at += 1
    elif wanted == 'colon' and char == ':':
      wanted = 'value'
      at += 1
    elif wanted.startswith(('key', 'value')):
      is_key = wanted.startswith('key')
      if is_key and char != '"':
        return None
      if _UNFINISHED.match(text, at):
        return calls.More()
      found = (_STRING if is_key else _SCALAR).match(text, at)
      if found is None:
        return None
      if is_key and len(stack) == 1:
        key = json.loads(found[0])
      elif not is_key and len(stack) == 1:
        members.append((key, at, found.end()))
      wanted = 'colon' if is_key else 'comma or end'
      at = found.end()
    else:
      return None


def read_calls(
  text: str, at: int, *, keys: tuple[str, ...], needs_arguments: bool
) -> calls.Calls | calls.More | None:
  """Reads a call, or a list of calls, that is written as JSON.

  Args:
    text: the text.
    at: where it begins.
    keys: under which of these names the arguments may stand.
    needs_arguments: without them it is no call, as an object with a name may
      be a plain answer.
  """
  value = scan(text, at)
  if not isinstance(value, Value):
    return value
  if text[at] == '{':
    found = [_call(text, value, keys, needs_arguments)]
  else:
    found = []
    for _, start, _ in value.members:
      item = scan(text, start)
      if not isinstance(item, Value) or text[start] != '{':
        return None
      found.append(_call(text, item, keys, needs_arguments))
  if not found or None in found:
    return None
  return calls.Calls(tuple(found), value.end)


def _call(text, value, keys, needs_arguments):
  """The call in an object, or None."""
  names = [name for name, _, _ in value.members]
  if names.count('name') != 1 or sum(map(names.count, keys)) > 1:
    return None
  spans = {name: text[start:end] for name, start, end in value.members}
  arguments = [spans[key] for key in keys if key in spans]
  if spans['name'][0] != '"' or needs_arguments and not arguments:
    return None
  return call(json.loads(spans['name']), *arguments)


def call(name: str, arguments: str = '{}') -> calls.ToolCall | None:
  """Returns a call, or None where that is no name or no object."""
  # A lone surrogate is JSON but no Unicode, and could not be sent.
  if not name or not _is_unicode(name):
    return None
  if arguments[0] == '"':  # An object, written as OpenAI's API shows it.
    arguments = json.loads(arguments)
    if not _is_unicode(arguments):
      return None
    value = scan(arguments, 0) if arguments else None
    if not isinstance(value, Value) or value.end != len(arguments):
      return None
  if arguments[0] != '{':
    return None
  return calls.ToolCall(name=name, arguments=arguments)


def _is_unicode(text):
  return not any('\ud800' <= char <= '\udfff' for char in text)
