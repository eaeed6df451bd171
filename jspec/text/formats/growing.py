# SPDX-License-Identifier: MIT
"""Arguments of a call, given on while they are written.

  {"name": "f", "arguments": {"a": [1, "b"]}, "id": 7}
                             ---------------  as they come; the rest is passed

`advance` walks through JSON by characters and stops at the first with which no
JSON can go on; where that is does not depend on how the text was cut. What does
not begin so is read by `json_text` and given whole.
"""

import dataclasses
import re

from jspec.text.formats import calls

# As `json_text` allows.
MAX_DEPTH = 256
_DONE = 'done'
_BLANKS = ' \t\n\r'
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*+')
_LITERALS = {'t': 'rue', 'f': 'alse', 'n': 'ull'}
_CLOSERS = {'{': '}', '[': ']'}
# What part of a number follows which, by kind of character.
_NUMBER = {
  ('minus', '0'): 'zero',
  ('minus', '1'): 'whole',
  ('whole', '0'): 'whole',
  ('whole', '1'): 'whole',
  ('zero', '.'): 'point',
  ('whole', '.'): 'point',
  ('point', '0'): 'fraction',
  ('point', '1'): 'fraction',
  ('fraction', '0'): 'fraction',
  ('fraction', '1'): 'fraction',
  ('zero', 'e'): 'e',
  ('whole', 'e'): 'e',
  ('fraction', 'e'): 'e',
  ('e', '+'): 'sign',
  ('e', '0'): 'power',
  ('e', '1'): 'power',
  ('sign', '0'): 'power',
  ('sign', '1'): 'power',
  ('power', '0'): 'power',
  ('power', '1'): 'power',
}
_NUMBER_ENDS = ('zero', 'whole', 'fraction', 'power')
_NUMBER_PARTS = (*_NUMBER_ENDS, 'minus', 'point', 'e', 'sign')
_KINDS = {**dict.fromkeys('123456789', '1'), 'E': 'e', '-': '+'}

_B = r'[ \t\n\r]*+'
_HEAD = re.compile(
  rf'\{{{_B}(?:"type"{_B}:{_B}"function"{_B},{_B})?'
  rf'"name"{_B}:{_B}"([^"\\\x00-\x1f]++)"{_B},{_B}'
  rf'"(\w++)"{_B}:{_B}(?=\{{)'
)


@dataclasses.dataclass(frozen=True)
class Place:
  """Where in a JSON value a text has come to.

  Attributes:
    closers: that are still to come, the next one last.
    wanted: what follows.
    left: of an escape or a word, what of it is missing.
  """

  closers: str = ''
  wanted: str = 'value'
  left: str = ''

  @property
  def is_done(self) -> bool:
    """Whether the value has ended."""
    return self.wanted == _DONE


def advance(place: Place, text: str, at: int = 0) -> tuple[Place, int]:
  """Walks on through a text.

  Returns:
    Where it has come to, and behind which character: the end of the value, the
    end of the text, or the first character that cannot stand there.
  """
  closers, wanted, left = place.closers, place.wanted, place.left
  while at < len(text) and wanted != _DONE:
    char = text[at]
    if left:
      shorter = _shorter(left, char)
      if shorter is None:
        break
      left = shorter
    elif wanted in ('text', 'name'):
      end = _PLAIN.match(text, at).end()
      if end > at:
        at = end
        continue
      if char == '\\':
        left = '\\'
      elif char == '"':
        wanted = 'colon' if wanted == 'name' else 'comma or end'
      else:
        break
    elif wanted in _NUMBER_PARTS:
      part = _NUMBER.get((wanted, _KINDS.get(char, char)))
      if part is None and wanted not in _NUMBER_ENDS:
        break
      if part is None:
        wanted = 'comma or end'
        continue
      wanted = part
    elif char in _BLANKS:
      pass
    elif wanted.endswith('end') and char == closers[-1]:
      closers = closers[:-1]
      wanted = 'comma or end' if closers else _DONE
    elif wanted == 'comma or end' and char == ',':
      wanted = 'key' if closers[-1] == '}' else 'value'
    elif wanted == 'colon' and char == ':':
      wanted = 'value'
    elif wanted.startswith('key') and char == '"':
      wanted = 'name'
    elif wanted.startswith('value') and (begun := _begun(closers, char)):
      closers, wanted, left = begun
    else:
      break
    at += 1
  return Place(closers, wanted, left), at


def object_end(text: str, at: int) -> int | calls.More | None:
  """Returns the place behind an object of which a member has just ended."""
  place, end = advance(Place('}', 'comma or end'), text, at)
  if place.is_done:
    return end
  return calls.More() if end == len(text) else None


def opened(
  text: str, at: int, keys: tuple[str, ...], then: calls.Read | None
) -> calls.Calls | None:
  """Returns the call that an object begins, once its arguments have begun.

  Args:
    text: the text.
    at: where the object begins.
    keys: under which of these names the arguments may stand.
    then: reads what follows the arguments.

  Returns:
    None: the object does not begin with a name and arguments, or not yet.
  """
  head = _HEAD.match(text, at)
  if head is None or head[2] not in keys:
    return None
  return call(head[1], head.end(), then)


def call(name: str, at: int, then: calls.Read | None = None) -> calls.Calls:
  """Returns a call whose arguments begin at `at`."""
  begun = calls.ToolCall(name=name, arguments='')
  return calls.Calls((begun,), at, Arguments(Place(), then))


@dataclasses.dataclass(frozen=True)
class Arguments:
  """Reads arguments from some place on.

  Attributes:
    place: in their JSON.
    then: reads what follows them; None: the format.
  """

  place: Place
  then: calls.Read | None

  def __call__(self, view: calls.View) -> calls.Step:
    """Gives all that are there; text from where they are no JSON."""
    place, end = advance(self.place, view.text)
    if not end:
      return calls.Step('', 0)
    then = self.then if place.is_done else Arguments(place, self.then)
    piece = calls.ToolCall(name='', arguments=view.text[:end])
    return calls.Step((piece,), end, then)


def _begun(closers, char):
  """Where the first character of a value leads; None: it begins none."""
  if char in _CLOSERS:
    if len(closers) == MAX_DEPTH:
      return None
    wanted = 'key or end' if char == '{' else 'value or end'
    return closers + _CLOSERS[char], wanted, ''
  if char in _LITERALS and closers:
    return closers, 'comma or end', _LITERALS[char]
  wanted = {'"': 'text', '-': 'minus', '0': 'zero'}.get(char)
  if wanted is None and char in '123456789':
    wanted = 'whole'
  return (closers, wanted, '') if wanted and closers else None


def _shorter(left, char):
  """What is missing of an escape or a word behind a character; None: broken."""
  if left == '\\':
    if char == 'u':
      return 'hhhh'
    return '' if char in '"\\/bfnrt' else None
  if left[0] == 'h':
    return left[1:] if char in '0123456789abcdefABCDEF' else None
  return left[1:] if char == left[0] else None
