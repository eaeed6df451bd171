# SPDX-License-Identifier: MIT
"""What the text of an answer means: thought, content and calls of tools.

  <think>Hm.</think>  Let me look.  <tool_call>{...}</tool_call>
  reasoning 'Hm.'     content       tool_calls

`parse` reads a whole text. `Deltas` reads it as it comes and gives what has
become certain; its parts put together are `parse` of the whole, for any way of
cutting the text. A call comes whole, when its end was seen. An answer that ends
within its thought is all thought.

White space around thoughts and calls is layout and left out; everything else of
the text is in one of the three, malformed calls as content.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jspec.text import stops
from jspec.text.formats import calls, thinking


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
  """What an answer may hold beside content.

  Attributes:
    tags: around a thought; None: there is none.
    is_open: the answer begins within the thought (`Tags.is_open`).
    tools: how calls are written; None: the request has no tools.
    schemas: JSON schemas of the arguments, by the name of the function; some
      formats need them to tell numbers from texts.
  """

  tags: thinking.Tags | None = None
  is_open: bool = False
  tools: calls.ToolFormat | None = None
  schemas: Mapping[str, Mapping[str, Any]] = dataclasses.field(
    default_factory=dict
  )

  @property
  def marks(self) -> tuple[str, ...]:
    """What `incremental.Detokenizer` has to keep."""
    tags = self.tags.marks if self.tags else ()
    return (*tags, *(self.tools.marks if self.tools else ()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
  """An answer, or what a piece of text added to it."""

  reasoning: str = ''
  content: str = ''
  tool_calls: tuple[calls.ToolCall, ...] = ()

  def __add__(self, other: 'Answer') -> 'Answer':
    return Answer(
      reasoning=self.reasoning + other.reasoning,
      content=self.content + other.content,
      tool_calls=self.tool_calls + other.tool_calls,
    )


def parse(text: str, form: Format, *, is_final: bool = True) -> Answer:
  """Returns what a text means; if it goes on, what of that is certain."""
  deltas = Deltas(form)
  answer = deltas.push(text)
  return answer + deltas.finish() if is_final else answer


def num_reasoning_tokens(pieces: Sequence[str], form: Format) -> int:
  """Returns how many tokens of an answer hold its thought, without its tags.

  Args:
    pieces: what each token shows (`delivery.Delivered.pieces`). A token without
      text counts where it stands: it begins a character.
    form: of the answer.
  """
  deltas = Deltas(form)
  text = ''.join(pieces)
  deltas.push(text)
  deltas.finish()
  start, stop = deltas.thought
  count = at = 0
  for piece in pieces:
    end = at + len(piece)
    count += at < stop and max(end, at + 1) > start
    at = end
  return count


class Deltas:
  """Reads one answer as it comes.

  Attributes:
    thought: where the thought lies in the text so far, start and end; equal
      numbers if there is none.
  """

  def __init__(self, form: Format):
    """Begins an answer."""
    self.thought = (0, 0)
    self._form = form
    self._rest = ''  # What is not settled.
    self._num_settled = 0
    self._read = self._read_start
    self._gap = ''  # White space that may turn out to be layout.
    self._has_shown = False  # Whether there was thought, or content.
    self._is_layout = False  # Whether white space follows a tag or a call.
    self._is_start = True
    self._follows_call = False

  def push(self, text: str) -> Answer:
    """Returns what becomes certain with more text."""
    self._rest += text
    return self._read(is_final=False)

  def finish(self) -> Answer:
    """Returns the rest; nothing may come after."""
    return self._read(is_final=True)

  def _settle(self, num):
    """Takes characters off the front."""
    self._rest = self._rest[num:]
    self._num_settled += num

  def _read_start(self, is_final):
    """Finds out whether the answer has a thought."""
    tags = self._form.tags
    if tags is None:
      self._read = self._read_content
      return self._read(is_final)
    at = calls.blank_end(self._rest, 0)
    behind = calls.literal(self._rest, at, tags.open)
    if isinstance(behind, calls.More) and not is_final:
      return Answer()
    if isinstance(behind, int):
      self._settle(behind)
    elif not self._form.is_open:
      self._read = self._read_content
      return self._read(is_final)
    self.thought = (self._num_settled,) * 2
    self._is_layout = True
    self._read = self._read_thought
    return self._read(is_final)

  def _read_thought(self, is_final):
    """Reads up to the closing tag."""
    close = self._form.tags.close
    end = self._rest.find(close)
    if end < 0:
      end = len(self._rest) if is_final else stops.begin(self._rest, (close,))
      reasoning = self._shown(self._rest[:end], is_final)
      self._settle(end)
      self.thought = (self.thought[0], self._num_settled)
      return Answer(reasoning=reasoning)
    reasoning = self._shown(self._rest[:end], False)
    self._settle(end)
    self.thought = (self.thought[0], self._num_settled)
    self._settle(len(close))
    self._gap, self._has_shown, self._is_layout = '', False, True
    self._read = self._read_content
    return Answer(reasoning=reasoning) + self._read(is_final)

  def _read_content(self, is_final):
    """Reads content and calls."""
    if self._form.tools is None:
      content = self._shown(self._rest, True)
      self._settle(len(self._rest))
      return Answer(content=content)
    content, found = '', ()
    while self._rest:
      segment = self._form.tools.read(
        calls.View(
          text=self._rest,
          is_start=self._is_start,
          follows_call=self._follows_call,
          is_final=is_final,
          schemas=self._form.schemas,
        )
      )
      if segment is None:
        break
      what, num = segment
      if isinstance(what, str):
        content += self._shown(what, False)
      else:
        found += what
        self._is_layout = True
      self._settle(num)
      self._is_start = False
      self._follows_call = not isinstance(what, str)
    content += self._shown('', is_final)
    return Answer(content=content, tool_calls=found)

  def _shown(self, text, is_end):
    """What of a text is shown: blanks at its end wait, layout is left out."""
    body = text.rstrip()
    shown = self._gap + body if body else ''
    self._gap = text[len(body) :] if body else self._gap + text
    if body:
      if self._is_layout and not self._has_shown:
        shown = shown.lstrip()
      self._has_shown, self._is_layout = True, False
    if is_end and not self._is_layout:
      shown, self._gap = shown + self._gap, ''
    return shown
