# SPDX-License-Identifier: MIT
r"""`Delivery`: from the tokens of an answer to what its client gets.

A round commits several tokens, and a stop string may end in the middle of them
and of a token. Text, token strings and usage then have to agree:

  tokens    'Hello'  ' wor'  'ld\n'  '\nUs'  'er:'  'x'     stop: '\n\nUser'
  pieces    'Hello'  ' wor'  'ld'    ''      ''             5 tokens counted
  text      'Hello world'

The stop string ended in token 4, so 5 tokens belong to the answer. The pieces
are what each of them shows; together they are the text.
"""

import collections
import dataclasses
from collections.abc import Sequence

from jspec.text import incremental
from jspec.text import stops as stops_lib


@dataclasses.dataclass(frozen=True, kw_only=True)
class Delivered:
  """What became certain.

  Attributes:
    text: may be shown now.
    pieces: the shown text of the next tokens whose text is settled, one piece a
      token, for token strings beside log-probabilities; may lag behind `text`.
    stop: the stop string that ended the answer.
  """

  text: str
  pieces: tuple[str, ...]
  stop: str | None = None


class Delivery:
  """One answer on its way to the client.

  Attributes:
    num_tokens: tokens of the answer so far, up to and with the one in which a
      stop string ended; what usage counts.
    stop: the stop string that was found.
  """

  def __init__(
    self,
    detokenizer: incremental.Detokenizer,
    stops: stops_lib.Stops,
  ):
    """Begins an answer; both parts are its own."""
    self.num_tokens = 0
    self.stop = None
    self._detokenizer = detokenizer
    self._stops = stops
    self._waiting = collections.deque()  # Texts of tokens that have no piece.
    self._ahead = 0  # Shown characters that belong to waiting tokens.

  def push(self, ids: Sequence[int]) -> Delivered:
    """Takes committed tokens; those behind a stop string are not shown."""
    shown = []
    if self.stop is not None:
      ids = ()
    for text in self._detokenizer.push_each(ids):
      if self.stop is not None:
        break
      self.num_tokens += 1
      self._waiting.append(text)
      shown.append(self._show(text))
    return self._delivered(''.join(shown))

  def finish(self) -> Delivered:
    """Ends the answer: what waited is shown, and the last token has a piece."""
    text = ''
    if self.stop is None:
      rest = self._detokenizer.finish()
      if self._waiting:  # Else the prompt ends within a character.
        self._waiting[-1] += rest
      text = self._show(rest)
      if self.stop is None:
        text += self._stops.finish()
    return self._delivered(text, is_last=True)

  def _show(self, text):
    shown, self.stop = self._stops.push(text)
    return shown

  def _delivered(self, text, is_last=False):
    """Hands shown characters to the tokens that they belong to."""
    self._ahead += len(text)
    pieces = []
    is_last |= self.stop is not None
    # The newest token gets the text of bytes that still wait.
    num_open = self._detokenizer.is_waiting
    while self._waiting and (
      is_last
      or len(self._waiting) > num_open
      and len(self._waiting[0]) <= self._ahead
    ):
      piece = self._waiting.popleft()[: self._ahead]
      self._ahead -= len(piece)
      pieces.append(piece)
    return Delivered(text=text, pieces=tuple(pieces), stop=self.stop)
