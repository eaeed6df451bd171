# SPDX-License-Identifier: MIT
"""Decoding as tokens come equals decoding all of them, however they are cut."""

import functools
import random

import pytest
import tokenizers
from tokenizers import decoders, models

from jspec import errors
from jspec.text import incremental, tokenizer
from tests.text import vocabularies

TEXT = 'na\u00efve \U0001f642\u200d\U0001f525 \ud55c\uae00 e\u0301  x\n\ufffd.'


@pytest.fixture(params=vocabularies.KINDS, scope='module')
def tok(request):
  return vocabularies.KINDS[request.param]()


def cuts(ids, rng):
  """The ids in pushes of 0 to 8."""
  at = 0
  while at < len(ids):
    width = rng.randrange(9)
    yield ids[at : at + width]
    at += width


def streamed(tok, ids, rng, prompt=(), **options):
  made = incremental.Detokenizer(tok, prompt, **options)
  return ''.join([*(made.push(part) for part in cuts(ids, rng)), made.finish()])


@functools.lru_cache
def known(tok):
  """The size of a vocabulary, and its ids of single bytes."""
  size = tok.vocab_size
  letters = (i for i in range(size) if len(tok.pieces.token_bytes(i)) == 1)
  return size, {tok.pieces.token_bytes(i): i for i in letters}


def drawn(tok, rng):
  """Ids in which bytes, blanks, special and absent tokens are frequent."""
  size, by_byte = known(tok)
  tail = range(size - 20, size + 3)
  pools = [range(size + 3), tail, tail, range(3)]
  ids = []
  for _ in range(rng.randrange(12)):
    kind = rng.randrange(6)
    if kind < 2 and len(by_byte) == 256:  # Whole characters and torn ones.
      char = rng.choice('\u00e9\u4f60\U0001f642').encode()
      if kind:
        char = char[: rng.randrange(1, len(char) + 1)]
      ids += [by_byte[bytes([byte])] for byte in char]
    else:
      ids.append(rng.choice(rng.choice(pools)))
  return ids


@pytest.mark.parametrize('skip_special', [True, False])
def test_any_ids_in_any_cut_are_what_decoding_them_at_once_gives(
  tok, skip_special
):
  rng = random.Random(skip_special)
  for _ in range(300):
    ids = drawn(tok, rng)
    whole = tok.decode(ids, skip_special=skip_special)
    assert streamed(tok, ids, rng, skip_special=skip_special) == whole, ids


def test_answer_is_what_its_ids_add_to_the_prompt(tok):
  rng = random.Random(1)
  for _ in range(150):
    prompt, ids = drawn(tok, rng), drawn(tok, rng)
    before = incremental.Detokenizer(tok).push(prompt)
    text = streamed(tok, ids, rng, prompt)
    assert before + text == tok.decode([*prompt, *ids]), (prompt, ids)


def test_text_of_each_token_sums_up_and_never_ends_within_a_character(tok):
  rng = random.Random(2)
  for _ in range(150):
    ids = drawn(tok, rng)
    made = incremental.Detokenizer(tok)
    each = made.push_each(ids)
    assert len(each) == len(ids)
    assert ''.join(each) + made.finish() == tok.decode(ids)
    assert not made.is_waiting or tok.pieces.rules.is_byte_level


def test_decoding_tokens_one_by_one_is_caught():
  # What the tests above would let pass if they could not fail.
  found = {}
  for kind, make in vocabularies.KINDS.items():
    tok, rng = make(), random.Random(3)
    drawn_ids = [drawn(tok, rng) for _ in range(100)]
    found[kind] = sum(
      ''.join(tok.decode([i]) for i in ids) != tok.decode(ids)
      for ids in drawn_ids
    )
  assert found.pop('fuse') == 0 and found.pop('metaspace_never') == 0
  assert min(found.values()) > 20, found


def test_characters_wait_for_their_bytes_and_are_not_lost_at_the_end():
  tok = vocabularies.byte_level()
  ids = tok.encode('\U0001f642')
  made = incremental.Detokenizer(tok)
  assert made.push_each(ids) == ['', '', '', '\U0001f642']
  assert made.finish() == ''
  made = incremental.Detokenizer(tok)
  assert made.push(ids[:3]) == '' and made.is_waiting
  assert (made.finish(), made.finish()) == ('\ufffd', '')
  # A mark that the model really wrote comes at once.
  made = incremental.Detokenizer(tok)
  assert made.push(tok.encode('\ufffd')) == '\ufffd'
  assert made.finish() == ''


def test_run_of_fallback_bytes_is_text_as_a_whole():
  tok = vocabularies.llama()
  bytes_of = {i: tok.token_id(f'<0x{i:02X}>') for i in range(256)}
  good = [bytes_of[b] for b in '\u4f60'.encode()]
  made = incremental.Detokenizer(tok)
  assert made.push(good) == ''
  assert made.push([tok.token_id('b')]) == '\u4f60b'
  broken = [*good, bytes_of[255]]
  assert incremental.Detokenizer(tok).push(broken) == ''
  assert streamed(tok, broken, random.Random(0)) == '\ufffd' * 4


@pytest.mark.parametrize('kind', ['llama', 'metaspace'])
def test_blanks_stay_except_for_the_one_that_opens_a_text(kind):
  tok = vocabularies.KINDS[kind]()
  words = [f'{vocabularies.SPACE}{word}' for word in ('Hello', 'world', 'a')]
  ids = [tok.token_id(word) for word in words]
  for width in (1, 2, 3):
    parts = [ids[i : i + width] for i in range(0, 3, width)]
    alone = incremental.Detokenizer(tok)
    assert ''.join(map(alone.push, parts)) == 'Hello world a'
    behind = incremental.Detokenizer(tok, [0, tok.token_id('b')])
    assert ''.join(map(behind.push, parts)) == ' Hello world a'
  # A special token that is skipped is no text to stand behind.
  assert incremental.Detokenizer(tok, [0]).push(ids) == 'Hello world a'


def test_special_tokens_that_are_named_stay():
  tok = vocabularies.byte_level()
  ids = tok.encode('he<|end|>ll<|im_end|>')
  assert incremental.Detokenizer(tok).push(ids) == 'hell'
  kept = incremental.Detokenizer(tok, keep=['<|im_end|>'])
  assert kept.push(ids) == 'hell<|im_end|>'
  assert tok.pieces.token_text(0) == '<|end|>'


def test_token_is_named_by_its_bytes_where_it_is_no_text():
  for tok in (vocabularies.byte_level(), vocabularies.llama()):
    ids = known(tok)[1].values()
    names = [tok.pieces.token_text(i) for i in ids]
    parts = {name for name in names if name.startswith('bytes:')}
    assert len(parts) == 128 and 'bytes:\\xe2' in parts
    assert tok.pieces.token_bytes(10**6) == b''
    assert tok.pieces.token_text(10**6) == ''


def test_bytes_of_tokens_are_the_text():
  tok = vocabularies.byte_level()
  found = b''.join(map(tok.pieces.token_bytes, tok.encode(TEXT)))
  assert found.decode() == TEXT


@pytest.mark.parametrize(
  'decoder, named',
  [
    (decoders.WordPiece(), 'WordPiece'),
    (decoders.CTC(), 'CTC'),
    (decoders.Strip(' ', 1, 0), 'Strip'),
    (decoders.Sequence([decoders.Fuse(), decoders.Strip(' ', 0, 1)]), 'Strip'),
    (
      decoders.Sequence([decoders.ByteFallback(), decoders.Replace('a', 'b')]),
      'ByteFallback > Replace',
    ),
    (
      decoders.Sequence([decoders.Fuse(), decoders.ByteLevel()]),
      'Fuse > ByteLevel',
    ),
    (decoders.Replace(tokenizers.Regex('a+'), 'b'), 'Replace'),
  ],
)
def test_decoder_that_looks_further_is_refused(decoder, named):
  backend = tokenizers.Tokenizer(models.WordLevel({'a': 0}, 'a'))
  backend.decoder = decoder
  with pytest.raises(errors.UserError, match=named):
    incremental.Detokenizer(tokenizer.Tokenizer(backend))


@pytest.mark.slow
def test_embedded_tokenizer_streams_what_it_decodes():
  tok, _ = vocabularies.smollm2()
  rng = random.Random(4)
  assert streamed(tok, tok.encode(TEXT), rng) == TEXT
  size = tok.vocab_size
  for _ in range(200):
    ids = [rng.randrange(size) for _ in range(20)]
    assert streamed(tok, ids, rng) == tok.decode(ids)
