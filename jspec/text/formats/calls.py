# SPDX-License-Identifier: MIT
"""`ToolFormat`: how a model writes calls of tools into its answer.

A format reads the front of what is not settled yet and gives its first segment,
text or calls, or says that it must see more:

  view      'Let me look.<tool_call>{"name": "f", '
  segments  'Let me look.', then None: the call may still turn out to be none

What it once gave it must give whatever follows: that makes a stream equal to
reading the whole answer. What is no call after all is text, mark by mark, so
that nothing of an answer is lost.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jspec.text import stops


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
  """One call.

  Attributes:
    name: of the function.
    arguments: JSON text of an object, as OpenAI's API has it.
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


Segment = str | tuple[ToolCall, ...]


@dataclasses.dataclass(frozen=True)
class More:
  """Whether this is a call cannot be said before there is more text."""


@dataclasses.dataclass(frozen=True)
class Calls:
  """Calls, and where in the text they end."""

  calls: tuple[ToolCall, ...]
  end: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
  """What calls look like, for grammars that force one.

  In `call`, `NAME` and `ARGUMENTS` stand for themselves; a part that is spelled
  like a special token is that token.
  """

  before: tuple[str, ...] = ()
  call: tuple[str, ...]
  between: str
  after: tuple[str, ...] = ()


NAME, ARGUMENTS = '{name}', '{arguments}'


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolFormat:
  """A format.

  Attributes:
    name: for people.
    read: view -> (segment, characters it takes), or None: it needs more text.
      In a final view there always is a segment.
    marks: spellings that may be special tokens and must then be kept in text.
    layout: what a grammar writes; None where JSON does not describe it.
  """

  name: str
  read: Callable[[View], tuple[Segment, int] | None]
  marks: tuple[str, ...] = ()
  layout: Layout | None = None


def marked(
  view: View,
  mark: str,
  call_behind: Callable[[View, int], Calls | More | None],
) -> tuple[Segment, int] | None:
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
    return (text[:shown], shown) if shown else None
  if begin:
    return text[:begin], begin
  found = call_behind(view, len(mark))
  if isinstance(found, Calls):
    return found.calls, found.end
  if isinstance(found, More) and not view.is_final:
    return None
  return mark, len(mark)


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
