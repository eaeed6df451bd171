# SPDX-License-Identifier: MIT
"""Qwen3-Coder: parameters between tags, as bare text.

  <tool_call>
  <function=weather>
  <parameter=city>
  Paris
  </parameter>
  </function>
  </tool_call>

What a value is, a text or a number, only the schema of the function says:
`12` is a text where the schema wants one. Without a schema values are texts.
Texts are given on while they come, other values when they are whole.
"""

import dataclasses
import json
import re

from jspec.text import stops
from jspec.text.formats import calls, json_text

OPEN, CLOSE = '<tool_call>', '</tool_call>'

_FUNCTION = re.compile(r'<function=([^<>\s]{1,256}+)>')
_PARAMETER = re.compile(r'<parameter=([^<>\s]{1,256}+)>')
_OPENING = re.compile(r'<(?:function|parameter)=[^<>\s]{0,256}+\Z')
_VALUE_END, _FUNCTION_END = '</parameter>', '</function>'
# As the template writes such values of earlier calls.
_PYTHON = {'True': 'true', 'False': 'false', 'None': 'null'}


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  return calls.marked(view, OPEN, _behind)


def _behind(view, at):
  text = view.text
  at = calls.blank_end(text, at)
  function = _FUNCTION.match(text, at)
  if function is None:
    return _unfinished(text, at, '<function=')
  parameters = _Parameters(function[1])
  # Before a parameter, or the end, it may be no call.
  found = parameters.next(text, function.end())
  if found is None or isinstance(found, calls.More):
    return found
  begun = calls.ToolCall(name=function[1], arguments='{')
  return calls.Calls((begun,), function.end(), parameters)


@dataclasses.dataclass(frozen=True)
class _Parameters:
  """Reads the parameters of a function one by one.

  Attributes:
    function: its name.
    names: of the parameters that were read.
  """

  function: str
  names: tuple[str, ...] = ()

  def next(self, text, at):
    """The next parameter's tag, or the place behind that of the end."""
    at = calls.blank_end(text, at)
    end = calls.literal(text, at, _FUNCTION_END)
    if isinstance(end, int):
      return end
    parameter = _PARAMETER.match(text, at)
    if parameter is None:
      return end or _unfinished(text, at, '<parameter=')
    return None if parameter[1] in self.names else parameter

  def __call__(self, view):
    found = self.next(view.text, 0)
    if found is None or isinstance(found, calls.More):
      is_open = found is not None and not view.is_final
      return None if is_open else calls.Step('', 0)
    if isinstance(found, int):
      return calls.Step((_piece('}'),), found, _end)
    name = found[1]
    schema = _schema(view.schemas.get(self.function, {}), name)
    front = ', ' if self.names else ''
    front += f'{json.dumps(name, ensure_ascii=False)}: '
    after = _Parameters(self.function, (*self.names, name))
    if not _may_be_text(schema):
      end = view.text.find(_VALUE_END, found.end())
      if end < 0:
        return calls.Step('', 0) if view.is_final else None
      value = front + _value(view.text[found.end() : end])
      return calls.Step((_piece(value),), end + len(_VALUE_END), after)
    # The template puts one line break on either side.
    return calls.Step(
      (_piece(front + '"'),), found.end(), _Text(after, is_start=True)
    )


@dataclasses.dataclass(frozen=True)
class _Text:
  """Reads a text as it comes."""

  then: calls.Read
  is_start: bool

  def __call__(self, view):
    text = view.text
    start = int(self.is_start and text.startswith('\n'))
    end = text.find(_VALUE_END, start)
    if end >= 0:
      last = end - (end > start and text[end - 1] == '\n')
      value = _spelled(text[start:last]) + '"'
      return calls.Step((_piece(value),), end + len(_VALUE_END), self.then)
    ends = (_VALUE_END, '\n' + _VALUE_END)
    end = max(stops.begin(text, ends), start)
    # What an answer ends in the middle of is no text.
    num = len(text) if view.is_final else end
    if not num:
      return None
    piece = _piece(_spelled(text[start:end]))
    return calls.Step((piece,), num, _Text(self.then, is_start=False))


def _end(view):
  """Reads what stands behind the function."""
  at = calls.blank_end(view.text, 0)
  if view.is_final and at == len(view.text):
    return calls.closed(view, at)
  return calls.closed(view, calls.literal(view.text, at, CLOSE))


def _piece(text):
  return calls.ToolCall(name='', arguments=text)


def _spelled(text):
  """A text within the quotes of JSON."""
  return json.dumps(text, ensure_ascii=False)[1:-1]


def _unfinished(text, at, opening):
  """Whether an opening tag may still come to its end."""
  begun = calls.literal(text, at, opening)
  if isinstance(begun, int):
    return calls.More() if _OPENING.match(text, at) else None
  return begun


def _schema(schema, name):
  """The schema of a parameter; without one it is a text."""
  properties = schema.get('properties')
  wanted = properties.get(name) if isinstance(properties, dict) else None
  return wanted if isinstance(wanted, dict) else {}


def _value(text):
  """The JSON of the value, no text if it can be, that a text stands for."""
  text = text.removeprefix('\n').removesuffix('\n')
  bare = text.strip()
  if bare in _PYTHON:
    return _PYTHON[bare]
  # As an item of a list, so that a number or a word is judged as well.
  listed = f'[{bare}]'
  value = json_text.scan(listed, 0)
  if isinstance(value, json_text.Value) and value.end == len(listed):
    if len(value.members) == 1:
      return bare
  return json.dumps(text, ensure_ascii=False)


def _may_be_text(schema):
  """Whether a schema allows texts, as far as can be seen without `$ref`."""
  for several in ('anyOf', 'oneOf'):
    if isinstance(schema.get(several), list):
      return any(
        _may_be_text(each) for each in schema[several] if isinstance(each, dict)
      )
  if isinstance(schema.get('enum'), list):
    return any(isinstance(each, str) for each in schema['enum'])
  kinds = schema.get('type', '' if '$ref' in schema else 'string')
  return kinds == 'string' or isinstance(kinds, list) and 'string' in kinds


FORMAT = calls.ToolFormat(name='qwen_coder', read=read, marks=(OPEN, CLOSE))
