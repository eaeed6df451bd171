# SPDX-License-Identifier: MIT
"""DeepSeek V3, R1 and V3.1: calls in marks of their own.

  V3    BEGIN CALL function SEP weather ```json {...} ``` CALL_END END
  V3.1  BEGIN CALL weather SEP {...} CALL_END END

All calls of an answer stand between one pair of outer marks and are given
together, when the outer ones close.
"""

import re

from jspec.text.formats import calls, json_text


def _mark(words: str) -> str:
  # Full-width bars and the blank of SentencePiece, as the vocabulary has them.
  return f'<\uff5c{words}\uff5c>'.replace(' ', '\u2581')


BEGIN, END = _mark('tool calls begin'), _mark('tool calls end')
CALL, CALL_END = _mark('tool call begin'), _mark('tool call end')
SEP = _mark('tool sep')

_NAME = re.compile(r'[\w.-]{1,256}+')
_FENCE, _FENCE_END = '```json', '```'


def read(view: calls.View) -> tuple[calls.Segment, int] | None:
  """Reads the first segment."""
  return calls.marked(view, BEGIN, _behind)


def _behind(view, at):
  text, found = view.text, []
  while True:
    at = calls.blank_end(text, at)
    if found:
      if view.is_final and at == len(text):
        return calls.Calls(tuple(found), at)
      end = calls.literal(text, at, END)
      if isinstance(end, int):
        return calls.Calls(tuple(found), end)
      # The marks for the end and for another call begin alike.
      if isinstance(end, calls.More):
        return end
    one = _one(text, at)
    if not isinstance(one, calls.Calls):
      return one
    found += one.calls
    at = one.end


def _one(text, at):
  """One call with its marks."""
  at = calls.literal(text, at, CALL)
  if not isinstance(at, int):
    return at
  at = calls.blank_end(text, at)
  name = _NAME.match(text, at)
  if name is None:
    return calls.More() if at == len(text) else None
  at = calls.literal(text, name.end(), SEP)
  if not isinstance(at, int):
    return at
  name, is_fenced = name[0], False
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  if text[at] not in '{[':  # V3: that was the type.
    if name != 'function':
      return None
    found = _NAME.match(text, at)
    if found is None:
      return None
    name, is_fenced = found[0], True
    at = calls.literal(text, calls.blank_end(text, found.end()), _FENCE)
    if not isinstance(at, int):
      return at
    at = calls.blank_end(text, at)
  value = json_text.scan(text, at)
  if not isinstance(value, json_text.Value):
    return value
  call = json_text.call(name, text[at : value.end])
  if call is None:
    return None
  at = calls.blank_end(text, value.end)
  for mark in (_FENCE_END, CALL_END) if is_fenced else (CALL_END,):
    at = calls.literal(text, calls.blank_end(text, at), mark)
    if not isinstance(at, int):
      return at
  return calls.Calls((call,), at)


FORMAT = calls.ToolFormat(
  name='deepseek',
  read=read,
  marks=(BEGIN, END, CALL, CALL_END, SEP),
  layout=calls.Layout(
    before=(BEGIN,),
    call=(
      CALL,
      'function',
      SEP,
      calls.NAME,
      '\n```json\n',
      calls.ARGUMENTS,
      '\n```',
      CALL_END,
    ),
    between='\n',
    after=(END,),
  ),
)
