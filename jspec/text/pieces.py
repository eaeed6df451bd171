# SPDX-License-Identifier: MIT
"""What every id of a vocabulary adds to a text.

A decoder of `tokenizers` works on a whole list of tokens. To decode as tokens
come, it is taken apart into what one token means and how neighbours join:

  byte level   a token is bytes; the text is all bytes, read as UTF-8
  pieces       a token is text, with U+2581 for a space, or (byte fallback) one
               byte; neighbouring bytes are one run, which is UTF-8 as a whole
               or else U+FFFD for each; blanks at the very start may go

Another decoder is refused: text that is nearly right is wrong in silence.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import pre_tokenizers

from jspec import errors

_BYTE = re.compile('<0x([0-9A-Fa-f]{2})>')


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
  """How neighbouring tokens join.

  Attributes:
    is_byte_level: tokens are bytes.
    replacements: spelling and meaning, applied within a token in this order.
    dropped: a character that is taken out of the first token of a text.
    falls_back: tokens such as `<0x0A>` are bytes.
    strip: a character and how many of it are taken off the start of the text.
    between: stands between two tokens.
  """

  is_byte_level: bool = False
  replacements: tuple[tuple[str, str], ...] = ()
  dropped: str = ''
  falls_back: bool = False
  strip: tuple[str, int] = ('', 0)
  between: str = ''


class Pieces:
  """The pieces of one vocabulary, kept once they were asked for.

  Attributes:
    rules: how they join.
    special: ids and spellings of special tokens.
  """

  def __init__(self, backend: tokenizers.Tokenizer):
    """Reads the decoder.

    Raises:
      UserError: it is none of the above.
    """
    self.rules = _rules(backend.decoder)
    self.special = {
      token_id: token.content
      for token_id, token in backend.get_added_tokens_decoder().items()
      if token.special
    }
    self._backend = backend
    self._known = {}

  def piece(self, token_id: int) -> str | bytes | None:
    """Returns what a token means behind others.

    Bytes that are only text together with their neighbours, or text; None for
    an id without a token, as in a model's padded rows.
    """
    if token_id not in self._known:
      self._known[token_id] = self._read(token_id)
    return self._known[token_id]

  def first_piece(self, token_id: int) -> str | bytes | None:
    """Returns what a token means at the start of a text."""
    piece, dropped = self.piece(token_id), self.rules.dropped
    if dropped and isinstance(piece, str):
      piece = self._backend.id_to_token(token_id).replace(dropped, '')
    return piece

  def token_bytes(self, token_id: int) -> bytes:
    """Returns the bytes of one token, special ones as they are spelled."""
    piece = self.piece(token_id)
    return piece.encode() if isinstance(piece, str) else piece or b''

  def token_text(self, token_id: int) -> str:
    r"""Returns one token as lists of alternatives name it.

    What is no text alone is spelled as OpenAI does, so that two such tokens
    keep different names: 'bytes:\xf0\x9f'.
    """
    found = self.token_bytes(token_id)
    try:
      return found.decode()
    except UnicodeDecodeError:
      return 'bytes:' + ''.join(f'\\x{byte:02x}' for byte in found)

  def _read(self, token_id):
    token = self._backend.id_to_token(token_id)
    if token is None:
      return None
    if self.rules.is_byte_level:
      if all(char in _CHAR_BYTES for char in token):
        return bytes(_CHAR_BYTES[char] for char in token)
      return token.encode()  # An added token with a blank in it, for one.
    for old, meant in self.rules.replacements:
      token = token.replace(old, meant)
    byte = _BYTE.fullmatch(token) if self.rules.falls_back else None
    return bytes.fromhex(byte[1]) if byte else token


def _rules(decoder: Any) -> Rules:
  """Reads a decoder of `tokenizers`, step by step."""
  if decoder is None:
    return Rules(between=' ')
  # The library gives its state as JSON.
  state = json.loads(decoder.__getstate__())
  steps = state['decoders'] if state['type'] == 'Sequence' else [state]
  found, passed = {'replacements': ()}, []
  for step in steps:
    kind = step['type']
    if not _fits(step, passed):
      raise errors.UserError(
        f"the tokenizer's decoder ({' > '.join([*passed, kind])}) cannot be"
        ' followed token by token; use a model with a byte-level or a'
        ' SentencePiece tokenizer'
      )
    passed.append(kind)
    if kind == 'ByteLevel':
      found['is_byte_level'] = True
    elif kind == 'Replace':
      found['replacements'] += ((step['pattern']['String'], step['content']),)
    elif kind == 'Metaspace':
      found['replacements'] += ((step['replacement'], ' '),)
      if step['prepend_scheme'] != 'never':
        found['dropped'] = step['replacement']
    elif kind == 'ByteFallback':
      found['falls_back'] = True
    elif kind == 'Strip':
      found['strip'] = (step['content'], step['start'])
  return Rules(**found)


def _fits(step: Mapping[str, Any], passed: list[str]) -> bool:
  """Whether a step means the same when tokens come one at a time."""
  kind = step['type']
  if kind == 'Fuse':
    return True
  if kind in ('ByteLevel', 'Metaspace'):
    return not passed
  if kind == 'Replace':
    return 'String' in step['pattern'] and set(passed) <= {'Replace'}
  if kind == 'ByteFallback':
    return set(passed) <= {'Replace', 'Metaspace'}
  # Before they are fused, the start of every token would be stripped.
  is_whole = passed[-1:] == ['Fuse'] and 'ByteLevel' not in passed
  return kind == 'Strip' and is_whole and step['stop'] == 0


def _char_bytes() -> dict[str, int]:
  """The characters by which byte-level BPE spells the 256 bytes.

  Printable bytes of Latin-1 stand for themselves, the others are counted up
  from U+0100.
  """
  alphabet = set(pre_tokenizers.ByteLevel.alphabet())
  table, others = {}, 0
  for byte in range(256):
    if chr(byte) in alphabet:
      table[chr(byte)] = byte
    else:
      table[chr(256 + others)] = byte
      others += 1
  return table


_CHAR_BYTES = _char_bytes()
