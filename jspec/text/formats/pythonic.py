# SPDX-License-Identifier: MIT
"""Llama 3.2 and 4: a list of calls as Python writes them.

  [weather(city='Paris', days=3), time()]

Only an answer that begins so; Llama 4 may put tags around the list. Arguments
are literals and have names (`python_text`); they are given on one by one. An
answer whose first argument is something else is text.
"""

import dataclasses
import json
import re

from jspec.text.formats import calls, python_text

OPENS, CLOSE = ('<|python_start|>', '<|python_tag|>'), '<|python_end|>'
# In a template: it tells the model to write calls so.
SIGN = '[func_name1('

_NAME = re.compile(r'[A-Za-z_][\w.-]*+')
_KEY = re.compile(r'([A-Za-z_][\w-]*+)[ \n]*+=')
_KEY_BEGUN = re.compile(r'[A-Za-z_][\w-]*+[ \n]*+\Z')


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  if view.is_start or view.follows_call:
    found = _list(view.text)
    if isinstance(found, calls.Calls):
      return calls.Step(found.calls, found.end, found.then)
    if isinstance(found, calls.More) and not view.is_final:
      return None
  return calls.Step(view.text, len(view.text))


def _list(text):
  """The first call of a list."""
  at = calls.blank_end(text, 0)
  for tag in OPENS:
    end = calls.literal(text, at, tag)
    if isinstance(end, int):
      at = calls.blank_end(text, end)
      break
    if isinstance(end, calls.More):
      return end
  at = calls.literal(text, at, '[')
  return _call(text, at) if isinstance(at, int) else at


def _call(text, at):
  """A call up to its parenthesis; it is one if an argument follows, or none."""
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  name = _NAME.match(text, at)
  if name is None:
    return None
  at = calls.literal(text, name.end(), '(')
  if not isinstance(at, int):
    return at
  arguments = _Arguments()
  found = arguments.next(text, at)
  if found is None or isinstance(found, calls.More):
    return found
  begun = calls.ToolCall(name=name[0], arguments='{')
  return calls.Calls((begun,), at, arguments)


@dataclasses.dataclass(frozen=True)
class _Arguments:
  """Reads the arguments of a call one by one.

  Attributes:
    names: of those that were read.
  """

  names: tuple[str, ...] = ()

  def next(self, text, at):
    """The next (name, JSON, end), or the place behind the parenthesis."""
    at = calls.blank_end(text, at)
    if self.names and text.startswith(',', at):
      at = calls.blank_end(text, at + 1)
    elif self.names and not text.startswith(')', at):
      return calls.More() if at == len(text) else None
    if text.startswith(')', at):
      return at + 1
    key = _KEY.match(text, at)
    if key is None:
      is_open = at == len(text) or _KEY_BEGUN.match(text, at)
      return calls.More() if is_open else None
    end = python_text.end(text, key.end())
    if not isinstance(end, int):
      return end
    value = python_text.to_json(text[key.end() : end])
    is_new = key[1] not in self.names
    return (key[1], value, end) if value is not None and is_new else None

  def __call__(self, view):
    found = self.next(view.text, 0)
    if found is None or isinstance(found, calls.More):
      is_open = found is not None and not view.is_final
      return None if is_open else calls.Step('', 0)
    if isinstance(found, int):
      return calls.Step((_piece('}'),), found, _next)
    name, value, end = found
    front = ', ' if self.names else ''
    piece = _piece(f'{front}{json.dumps(name, ensure_ascii=False)}: {value}')
    return calls.Step((piece,), end, _Arguments((*self.names, name)))


def _next(view):
  """Reads another call, or the end of the list."""
  text = view.text
  at = calls.blank_end(text, 0)
  if view.is_final and at == len(text):
    return calls.closed(view, at)
  end = calls.literal(text, at, ']')
  if isinstance(end, int):
    close = calls.literal(text, end, CLOSE)
    return calls.closed(view, end if close is None else close)
  found = end
  if text.startswith(',', at):
    found = _call(text, at + 1)
  if isinstance(found, calls.Calls):
    return calls.Step(found.calls, found.end, found.then)
  is_open = isinstance(found, calls.More) and not view.is_final
  return None if is_open else calls.Step('', 0)


def _piece(text):
  return calls.ToolCall(name='', arguments=text)


FORMAT = calls.ToolFormat(
  name='pythonic',
  read=read,
  marks=(*OPENS, CLOSE),
  layout=calls.Layout(
    before=('[',),
    call=(calls.NAME, '(', calls.ARGUMENTS, ')'),
    between=', ',
    after=(']',),
    has_keywords=True,
  ),
)
