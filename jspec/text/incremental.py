# SPDX-License-Identifier: MIT
"""`Detokenizer`: the text of an answer while its tokens come.

  ids      Hel  lo  <f0><9f>  <99><82>  <e2>
  pushes   Hel  lo  ''        (smile)   ''     finish: U+FFFD

Nothing is said that a later token could change: bytes wait until they are a
character, in a vocabulary with byte fallback until the run of them has ended.
The pushes and the finish together are what decoding all ids at once gives, for
any way of cutting the ids. Each token is looked at once.
"""

import codecs
from collections.abc import Collection, Sequence

from jspec.text import tokenizer as tokenizer_lib


class Detokenizer:
  """Decodes one answer, some tokens at a time."""

  def __init__(
    self,
    tokenizer: tokenizer_lib.Tokenizer,
    prompt_ids: Sequence[int] = (),
    *,
    skip_special: bool = True,
    keep: Collection[str] = (),
  ):
    """Begins an answer.

    Args:
      tokenizer: the vocabulary.
      prompt_ids: what the answer continues. Without it the answer is a text of
        its own, and a tokenizer that opens every text with a blank loses that
        one: right for a turn of a chat, wrong for a completion. A character
        that the prompt has begun belongs to the answer.
      skip_special: special tokens are no text.
      keep: spellings of special tokens that are text nevertheless, such as the
        marks of a tool format.

    Raises:
      UserError: tokens of this vocabulary cannot be decoded as they come.
    """
    self._pieces = tokenizer.pieces
    special = self._pieces.special if skip_special else {}
    self._skipped = {i for i, token in special.items() if token not in keep}
    self._utf8 = codecs.getincrementaldecoder('utf-8')('replace')
    self._run = b''
    self._strip, self._num_strip = self._pieces.rules.strip
    self._is_first = True
    for token_id in prompt_ids:
      self._next(token_id)

  @property
  def is_waiting(self) -> bool:
    """Whether bytes wait for more."""
    return bool(self._run or self._utf8.getstate()[0])

  def push(self, ids: Sequence[int]) -> str:
    """Returns the text that is final with these ids."""
    return ''.join(self.push_each(ids))

  def push_each(self, ids: Sequence[int]) -> list[str]:
    """Returns the text that is final with each of these ids.

    Their sum is the text, so the length of what came before is the offset of a
    token. One that only begins a character adds ''.
    """
    return [self._next(token_id) for token_id in ids]

  def finish(self) -> str:
    """Returns the text of bytes that still wait; nothing may come after."""
    if self._pieces.rules.is_byte_level:
      return self._utf8.decode(b'', final=True)
    return self._stripped(self._end_run())

  def _next(self, token_id):
    """The text that one token makes final."""
    if token_id in self._skipped:
      return ''
    rules, first = self._pieces.rules, self._is_first
    read = self._pieces.first_piece if first else self._pieces.piece
    piece = read(token_id)
    if piece is None:
      return ''
    self._is_first = False
    if rules.is_byte_level:
      return self._utf8.decode(piece)
    if isinstance(piece, bytes):
      self._run += piece
      return ''
    between = '' if first else rules.between
    return self._stripped(self._end_run() + between + piece)

  def _end_run(self):
    """The text of a run of bytes."""
    run, self._run = self._run, b''
    try:
      return run.decode()
    except UnicodeDecodeError:
      return '\ufffd' * len(run)

  def _stripped(self, text):
    """Takes blanks off the start of the whole text."""
    while self._num_strip and text:
      if text[0] != self._strip:
        self._num_strip = 0
        break
      text = text[1:]
      self._num_strip -= 1
    return text
