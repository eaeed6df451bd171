# SPDX-License-Identifier: MIT
"""GPT-OSS ("harmony"): an answer is messages, each with a header.

  <|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant
  <|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>

(in one line). What is sent to a function is a call, the channel analysis is
thought, everything else content; the prompt has written the first
`<|start|>assistant`. The recipient may also stand before the channel.

A mark ends a message only where the answer ends or a header follows; elsewhere
it is text. Reference: https://cookbook.openai.com/articles/openai-harmony.
"""

import dataclasses
import re

from jspec.text import stops
from jspec.text.formats import calls, growing

START, CHANNEL, MESSAGE = '<|start|>', '<|channel|>', '<|message|>'
CONSTRAIN = '<|constrain|>'
END, CALL, RETURN = '<|end|>', '<|call|>', '<|return|>'
# In a template: it writes calls so.
SIGN = CHANNEL + 'commentary'

_ENDS = (END, CALL, RETURN)
_END = re.compile('|'.join(map(re.escape, _ENDS)))
_MAX_HEADER = 400
_NAME = r'[\w.-]++'
_HEADER = re.compile(
  rf'(?:{_NAME}(?!=))? *+(?:to=(?P<first>{_NAME}) *+)?'
  rf'(?:{re.escape(CHANNEL)}(?P<channel>\w*+) *+'
  rf'(?:to=(?P<second>{_NAME}) *+)?)?'
  rf'(?:{re.escape(CONSTRAIN)} *+)?\w*+ *+'
)
_NOT_IN_HEADER = re.compile(r'[^\w.=<|> -]')
_FUNCTIONS = 'functions.'
_THOUGHT, _CONTENT = 'thought', 'content'


def read(view: calls.View) -> calls.Step | None:
  """Reads the first segment."""
  if not view.is_start:  # Arguments that were none.
    return _Body(_CONTENT)(view)
  at = calls.blank_end(view.text, 0)
  begun = [calls.literal(view.text, at, sign) for sign in (CHANNEL, 'to=')]
  if any(isinstance(end, int) for end in begun):
    found = _header(view, at, ())
    if found is not None:
      return _or_wait(view, found)
  elif not view.is_final and any(begun):
    return None
  return calls.Step('', 0, _Body(_CONTENT))


@dataclasses.dataclass(frozen=True)
class _Body:
  """Reads the text of a message.

  Attributes:
    kind: what it is.
    seen: kinds that there was text of.
  """

  kind: str
  seen: tuple[str, ...] = ()
  is_new: bool = False

  def __call__(self, view):
    text = view.text
    mark = _END.search(text)
    if mark is None:
      end = len(text) if view.is_final else stops.begin(text, _ENDS)
      return self._shown(text[:end]) if end else None
    if mark.start():
      return self._shown(text[: mark.start()])
    at = calls.blank_end(text, mark.end())
    if at == len(text):
      return calls.Step('', at) if view.is_final else None
    found = calls.literal(text, at, START)
    if isinstance(found, int):
      found = _header(view, found, self.seen)
    return self._shown(mark[0]) if found is None else _or_wait(view, found)

  def _shown(self, text):
    # Messages of one kind stand on lines of their own.
    front = '\n' if self.is_new and self.kind in self.seen else ''
    after = _Body(self.kind, (*{*self.seen, self.kind},))
    what = front + text
    is_thought = self.kind == _THOUGHT
    what = calls.Thought(what) if is_thought else what
    return calls.Step(what, len(text), after)


@dataclasses.dataclass(frozen=True)
class _Call:
  """Reads what was sent to a function."""

  name: str
  seen: tuple[str, ...]

  def __call__(self, view):
    text, after = view.text, _Body(_CONTENT, self.seen)
    at = calls.blank_end(text, 0)
    if at == len(text):
      return calls.Step((), at) if view.is_final else None
    if text[at] == '{':
      found = growing.call(self.name, at, after)
      return calls.Step(found.calls, found.end, found.then)
    ends = [calls.literal(text, at, mark) for mark in _ENDS]
    if any(isinstance(end, int) for end in ends):
      call = calls.ToolCall(name=self.name, arguments='{}')
      return calls.Step((call,), at, after)
    return None if any(ends) and not view.is_final else calls.Step('', 0, after)


def _header(view, at, seen):
  """The step over a header, or whether there may be one."""
  text = view.text
  end = text.find(MESSAGE, at, at + _MAX_HEADER)
  if _NOT_IN_HEADER.search(text, at, end if end >= 0 else len(text)):
    return None
  if end < 0:
    return calls.More() if len(text) < at + _MAX_HEADER else None
  header = _HEADER.fullmatch(text, at, end)
  if header is None:
    return None
  to = header['first'] or header['second'] or ''
  if to.startswith(_FUNCTIONS) and view.schemas:
    then = _Call(to.removeprefix(_FUNCTIONS), seen)
  else:
    kind = _THOUGHT if header['channel'] == 'analysis' else _CONTENT
    then = _Body(kind, seen, is_new=True)
  return calls.Step('', end + len(MESSAGE), then)


def _or_wait(view, found):
  """A step, or nothing; at its end an answer has no header any more."""
  if isinstance(found, calls.More):
    return calls.Step('', len(view.text)) if view.is_final else None
  return found


FORMAT = calls.ToolFormat(
  name='harmony',
  read=read,
  marks=(START, CHANNEL, MESSAGE, CONSTRAIN, *_ENDS),
  front=CHANNEL + 'final' + MESSAGE,
  ends=(CALL, RETURN),
  layout=calls.Layout(
    thought=((CHANNEL, 'analysis', MESSAGE), (END, START, 'assistant')),
    call=(
      CHANNEL,
      f'commentary to={_FUNCTIONS}',
      calls.NAME,
      ' ',
      CONSTRAIN,
      'json',
      MESSAGE,
      calls.ARGUMENTS,
    ),
    between=None,
  ),
)
