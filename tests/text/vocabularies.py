# SPDX-License-Identifier: MIT
"""Small tokenizers of every kind that is decoded as tokens come."""

import functools

import pytest
import tokenizers
from tokenizers import decoders, models

from jspec.checkpoints import gguf
from jspec.targets import embedded
from jspec.text import chat, tokenizer
from tests.text import tokenizer_test

SPACE = '\u2581'
BYTES = [f'<0x{byte:02X}>' for byte in range(256)]
WORDS = [SPACE, f'{SPACE}{SPACE}', f'{SPACE}Hello', f'{SPACE}world', 'again']
WORDS += [f'{SPACE}a', 'b', '\n', '\u4f60', '.', f'x{SPACE}y', '\ufffd', ' ']


def byte_level():
  """Bytes, some merges, a special token, and added tokens that are text."""
  tok = tokenizer.from_gguf(tokenizer_test.byte_level(), 'x.gguf')
  tok.backend.add_tokens(['<tool call>', '\u00e9t\u00e9', '\ufffd'])
  tok.backend.add_special_tokens(['<|im_end|>'])
  return tok


def pieces(decoder, words=(*BYTES, *WORDS)):
  """Words and bytes; the ids are shuffled nowhere, so they are easy to name."""
  vocab = {word: i for i, word in enumerate(['<s>', '</s>', *words])}
  backend = tokenizers.Tokenizer(models.BPE(vocab, []))
  backend.decoder = decoder
  backend.add_special_tokens(['<s>', '</s>'])
  backend.add_tokens(['<tool_call>'])
  return tokenizer.Tokenizer(backend, 0, (1,))


def llama(num_strip=1):
  """As Llama 2 (one blank is stripped) or Gemma (none is) decode."""
  steps = [
    decoders.Replace(SPACE, ' '),
    decoders.ByteFallback(),
    decoders.Fuse(),
  ]
  if num_strip:
    steps.append(decoders.Strip(' ', num_strip, 0))
  return pieces(decoders.Sequence(steps))


KINDS = {
  'byte_level': byte_level,
  'llama': llama,
  'gemma': lambda: llama(0),
  'two_blanks': lambda: llama(2),
  'metaspace': lambda: pieces(decoders.Metaspace()),
  'metaspace_never': lambda: pieces(decoders.Metaspace(prepend_scheme='never')),
  'fallback_metaspace': lambda: pieces(
    decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
  ),
  'words': lambda: pieces(None),
  'fuse': lambda: pieces(decoders.Fuse()),
}


@functools.cache
def smollm2():
  """The embedded model's tokenizer and template, if it was fetched already."""
  path = embedded.cache_folder() / embedded.MEMBER.split('/')[-1]
  if not path.is_file():
    pytest.skip('smollm2_135m is not in the cache; load it once to fetch it')
  file = gguf.GGUFFile(path)
  tok = tokenizer.from_gguf(file.metadata, file.where)
  return tok, chat.from_gguf(file.metadata, tok)
