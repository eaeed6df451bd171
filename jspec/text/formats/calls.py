# SPDX-License-Identifier: MIT
"""`ToolFormat`: how a model writes calls of tools into its answer.

A format reads the front of what is not settled yet and gives its first segment,
text or calls, or says that it must see more:

  view      'Let me look.<tool_call>{"name": "f", '
  segments  'Let me look.', then None: the call may still turn out to be none
  view      '<tool_call>{"name": "f", "arguments": {"a'
  segments  a call of f; '{"a' of its arguments

What it once gave it must give whatever follows: that makes a stream equal to
reading the whole answer. So a call is one from where its arguments begin: if
they stop being JSON, or the answer stops, they end there. What is no call after
all is text, mark by mark, so that nothing of an answer is lost.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jspec.text import stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
  """One call, or a piece of one.

  Attributes:
    name: of the function; '' in a piece that goes on with the call before.
    arguments: JSON text of an object, as OpenAI's API has it; less than one
      where the model did not finish it.
  """

  name: str
  arguments: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
  """What a format looks at.

  Attributes:
    text: not settled yet; not empty.
    is_start: the answer (behind its thought) begins with this text.
    follows_call: the segment before it was a call.
    is_final: no text follows.
    schemas: JSON schemas of the arguments, by the name of the function.
  """

  text: str
  is_start: bool = True
  follows_call: bool = False
  is_final: bool = True
  schemas: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )


@dataclasses.dataclass(frozen=True)
class Thought:
  """Text of a thought."""

  text: str


Segment = str | tuple[ToolCall, ...] | Thought


@dataclasses.dataclass(frozen=True)
class Step:
  """A segment, and how reading goes on.

  Attributes:
    what: text, calls or pieces of them, or thought.
    num: characters it takes.
    then: reads what follows, as `Read`; None: the format itself does.
  """

  what: Segment
  num: int
  then: Callable[[View], Any] | None = None


Read = Callable[[View], Step | None]


@dataclasses.dataclass(frozen=True)
class More:
  """Whether this is a call cannot be said before there is more text."""


@dataclasses.dataclass(frozen=True)
class Calls:
  """Calls, where in the text they end, and what reads on from there."""

  calls: tuple[ToolCall, ...]
  end: int
  then: Read | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """What calls look like, for grammars that force one.

  In `call`, `NAME` and `ARGUMENTS` stand for themselves; a part that is spelled
  like a special token is that token.

  Attributes:
    before: opens an answer of calls.
    call: one of them.
    between: stands between two; None: there is only one.
    after: closes them.
    thought: what stands on either side of a thought that may come first.
    has_keywords: arguments are written `key=value, ...`, not as an object.
  """

  before: tuple[str, ...] = ()
  call: tuple[str, ...]
  between: str | None
  after: tuple[str, ...] = ()
  thought: tuple[tuple[str, ...], tuple[str, ...]] | None = None
  has_keywords: bool = False


NAME, ARGUMENTS = '{name}', '{arguments}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
  """A format.

  Attributes:
    name: for people.
    read: view -> the next step, or None: it needs more text. In a final view
      there always is a step.
    marks: spellings that may be special tokens and must then be kept in text.
    layout: what a grammar writes; None where JSON does not describe it.
    front: stands before an answer that is content only. A format that has it
      divides every answer, and reads those without tools (and without schemas)
      as well; then there are no calls.
    ends: spellings of tokens that end an answer.
  """

  name: str
  read: Read
  marks: tuple[str, ...] = ()
  layout: Layout | None = None
  front: str = ''
  ends: tuple[str, ...] = ()


def marked(
  view: View,
  mark: str,
  call_behind: Callable[[View, int], Calls | More | None],
) -> Step | None:
  """Reads a format whose calls begin with a mark.

  Args:
    view: the text.
    mark: begins calls.
    call_behind: view and the place behind a mark to what stands there; None:
      no call, whatever follows.
  """
  text = view.text
  begin = text.find(mark)
  if begin < 0:
    shown = len(text) if view.is_final else stops.begin(text, (mark,))
    return Step(text[:shown], shown) if shown else None
  if begin:
    return Step(text[:begin], begin)
  found = call_behind(view, len(mark))
  if isinstance(found, Calls):
    return Step(found.calls, found.end, found.then)
  if isinstance(found, More) and not view.is_final:
    return None
  return Step(mark, len(mark))


def closed(view: View, end: int | More | None) -> Step | None:
  """Returns the step over what closes a call, if that is what stands there.

  What an answer ends in the middle of is closed as well. Anything else is text
  for the format to read.
  """
  if isinstance(end, int):
    return Step((), end)
  if isinstance(end, More):
    return Step((), len(view.text)) if view.is_final else None
  return Step('', 0)


def blank_end(text: str, at: int) -> int:
  """Returns the place behind the white space at `at`."""
  while at < len(text) and text[at].isspace():
    at += 1
  return at


def literal(text: str, at: int, wanted: str) -> int | More | None:
  """Returns the place behind `wanted`, which has to stand at `at`."""
  if text.startswith(wanted, at):
    return at + len(wanted)
  return More() if wanted.startswith(text[at:]) else None
