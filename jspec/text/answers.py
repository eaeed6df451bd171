# SPDX-License-Identifier: MIT
"""What the text of an answer means: thought, content and calls of tools.

  <think>Hm.</think>  Let me look.  <tool_call>{...}</tool_call>
  reasoning 'Hm.'     content       tool_calls

`parse` reads a whole text. `Deltas` reads it as it comes and gives what has
become certain; its parts put together are `parse` of the whole, for any way of
cutting the text. A call comes with its name once its arguments begin, and then
piece by piece (`formats.calls`). An answer that ends within its thought is all
thought.

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
    tools: how calls are written; None: the request has no tools, and the
      format has no `front`.
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
  """An answer, or what a piece of text added to it.

  What was added may begin with a piece of a call: without a name, it goes on
  with the last call so far.
  """

  reasoning: str = ''
  content: str = ''
  tool_calls: tuple[calls.ToolCall, ...] = ()

  def __add__(self, other: 'Answer') -> 'Answer':
    return Answer(
      reasoning=self.reasoning + other.reasoning,
      content=self.content + other.content,
      tool_calls=_joined(self.tool_calls, other.tool_calls),
    )


def _joined(
  first: tuple[calls.ToolCall, ...], second: tuple[calls.ToolCall, ...]
) -> tuple[calls.ToolCall, ...]:
  """Calls one after the other; a piece is put to the call it belongs to."""
  if not first or not second or second[0].name:
    return first + second
  longer = dataclasses.replace(
    first[-1], arguments=first[-1].arguments + second[0].arguments
  )
  return (*first[:-1], longer, *second[1:])


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
  count = at = 0
  for piece in pieces:
    end = max(at + len(piece), at + 1)
    count += any(at < stop and end > start for start, stop in deltas.thoughts)
    at += len(piece)
  return count


class Deltas:
  """Reads one answer as it comes.

  Attributes:
    thoughts: where thought lies in the text so far, starts and ends.
  """

  def __init__(self, form: Format):
    """Begins an answer."""
    self.thoughts = []
    self._form = form
    self._rest = ''  # What is not settled.
    self._num_settled = 0
    self._read = self._read_start
    self._gap = ''  # White space that may turn out to be layout.
    self._has_shown = False  # Whether there was thought, or content.
    self._is_layout = False  # Whether white space follows a tag or a call.
    self._is_start = True
    self._follows_call = False
    self._then = None  # Who reads on, if not the format.

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

  def _think(self, num):
    """Takes characters of a thought off the front."""
    start, stop = self._num_settled, self._num_settled + num
    if self.thoughts and self.thoughts[-1][1] == start:
      start = self.thoughts.pop()[0]
    self.thoughts.append((start, stop))
    self._settle(num)

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
    self.thoughts.append((self._num_settled,) * 2)
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
      self._think(end)
      return Answer(reasoning=reasoning)
    reasoning = self._shown(self._rest[:end], False)
    self._think(end)
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
    answer = Answer()
    while self._rest:
      read = self._then or self._form.tools.read
      step = read(
        calls.View(
          text=self._rest,
          is_start=self._is_start,
          follows_call=self._follows_call,
          is_final=is_final,
          schemas=self._form.schemas,
        )
      )
      if step is None:
        break
      is_thought = isinstance(step.what, calls.Thought)
      if is_thought:
        answer += Answer(reasoning=step.what.text)
      elif isinstance(step.what, str):
        answer += Answer(content=self._shown(step.what, False))
      else:
        answer += Answer(tool_calls=step.what)
        self._is_layout = True
      (self._think if is_thought else self._settle)(step.num)
      self._then = step.then
      self._is_start = False
      self._follows_call = isinstance(step.what, tuple)
    return answer + Answer(content=self._shown('', is_final))

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
