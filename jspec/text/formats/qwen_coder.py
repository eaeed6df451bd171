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
"""

import json
import re

from jspec.text.formats import calls, json_text

OPEN, CLOSE = '<tool_call>', '</tool_call>'

_FUNCTION = re.compile(r'<function=([^<>\s]{1,256}+)>')
_PARAMETER = re.compile(r'<parameter=([^<>\s]{1,256}+)>')
_OPENING = re.compile(r'<(?:function|parameter)=[^<>\s]{0,256}+\Z')
_VALUE_END, _FUNCTION_END = '</parameter>', '</function>'
# As the template writes such values of earlier calls.
_PYTHON = {'True': 'true', 'False': 'false', 'None': 'null'}


def read(view: calls.View) -> tuple[calls.Segment, int] | None:
  """Reads the first segment."""
  return calls.marked(view, OPEN, _behind)


def _behind(view, at):
  text = view.text
  at = calls.blank_end(text, at)
  function = _FUNCTION.match(text, at)
  if function is None:
    return _unfinished(text, at, '<function=')
  name, at = function[1], function.end()
  schema = view.schemas.get(name, {})
  values = {}
  while True:
    at = calls.blank_end(text, at)
    end = calls.literal(text, at, _FUNCTION_END)
    if isinstance(end, int):
      break
    parameter = _PARAMETER.match(text, at)
    if parameter is None:
      return end or _unfinished(text, at, '<parameter=')
    start = parameter.end()
    at = text.find(_VALUE_END, start)
    if at < 0:
      return calls.More()
    if parameter[1] in values:
      return None
    values[parameter[1]] = _value(text[start:at], schema, parameter[1])
    at += len(_VALUE_END)
  at = calls.blank_end(text, end)
  members = [
    f'{json.dumps(key, ensure_ascii=False)}: {value}'
    for key, value in values.items()
  ]
  call = calls.ToolCall(name=name, arguments='{' + ', '.join(members) + '}')
  if view.is_final and at == len(text):
    return calls.Calls((call,), at)
  end = calls.literal(text, at, CLOSE)
  return calls.Calls((call,), end) if isinstance(end, int) else end


def _unfinished(text, at, opening):
  """Whether an opening tag may still come to its end."""
  begun = calls.literal(text, at, opening)
  if isinstance(begun, int):
    return calls.More() if _OPENING.match(text, at) else None
  return begun


def _value(text, schema, name):
  """The JSON of the value that a text stands for."""
  # The template puts one line break on either side.
  text = text.removeprefix('\n').removesuffix('\n')
  properties = schema.get('properties')
  wanted = properties.get(name) if isinstance(properties, dict) else None
  bare = text.strip()
  if isinstance(wanted, dict) and not _may_be_text(wanted):
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
