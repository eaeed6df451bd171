# SPDX-License-Identifier: MIT
"""DeepSeek V3, R1 and V3.1: calls in marks of their own.

  V3    BEGIN CALL function SEP weather ```json {...} ``` CALL_END END
  V3.1  BEGIN CALL weather SEP {...} CALL_END END

All calls of an answer stand between one pair of outer marks.
"""

import dataclasses
import re

from jspec.text.formats import calls, growing


def _mark(words: str) -> str:
  # Full-width bars and the blank of SentencePiece, as the vocabulary has them.
  return f'<\uff5c{words}\uff5c>'.replace(' ', '\u2581')


BEGIN, END = _mark('tool calls begin'), _mark('tool calls end')
CALL, CALL_END = _mark('tool call begin'), _mark('tool call end')
SEP = _mark('tool sep')

_NAME = re.compile(r'[\w.-]{1,256}+')
_FENCE, _FENCE_END = '```json', '```'


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  return calls.marked(view, BEGIN, _behind)


def _behind(view, at):
  return _call(view.text, calls.blank_end(view.text, at))


def _call(text, at):
  """A call from its mark to where its arguments begin."""
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
  name, marks = name[0], (CALL_END,)
  at = calls.blank_end(text, at)
  if at == len(text):
    return calls.More()
  if text[at] != '{':  # V3: that was the type.
    if name != 'function':
      return None
    found = _NAME.match(text, at)
    if found is None:
      return None
    name, marks = found[0], (_FENCE_END, CALL_END)
    at = calls.literal(text, calls.blank_end(text, found.end()), _FENCE)
    if not isinstance(at, int):
      return at
    at = calls.blank_end(text, at)
    if at == len(text):
      return calls.More()
  return growing.call(name, at, _End(marks)) if text[at] == '{' else None


@dataclasses.dataclass(frozen=True)
class _End:
  """Reads what stands behind the arguments, up to another call or the end."""

  marks: tuple[str, ...]

  def __call__(self, view):
    text, at = view.text, 0
    for mark in self.marks:
      at = calls.literal(text, calls.blank_end(text, at), mark)
      if not isinstance(at, int):
        return calls.closed(view, at)
    at = calls.blank_end(text, at)
    if view.is_final and at == len(text):
      return calls.closed(view, at)
    end = calls.literal(text, at, END)
    # The marks for the end and for another call begin alike.
    if end is not None:
      return calls.closed(view, end)
    found = _call(text, at)
    if isinstance(found, calls.Calls):
      return calls.Step(found.calls, found.end, found.then)
    is_open = isinstance(found, calls.More) and not view.is_final
    return None if is_open else calls.Step('', 0)


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
