# SPDX-License-Identifier: MIT
"""Text, token strings and the number of tokens agree, in any cut."""

import random

import pytest

from jspec.text import delivery, incremental, stops
from tests.text import vocabularies


def run(tok, parts, strings=(), include=False, prompt=()):
  """All text and pieces, the stop string, and the number of tokens."""
  made = delivery.Delivery(
    incremental.Detokenizer(tok, prompt), stops.Stops(strings, include=include)
  )
  text, pieces, stop = '', (), None
  for part in parts:
    now = made.push(part)
    text, pieces = text + now.text, pieces + now.pieces
    # Pieces never run ahead of what the client has seen.
    assert text.startswith(''.join(pieces))
    stop = now.stop
    if stop is not None:
      break
  now = made.finish()
  text, pieces = text + now.text, pieces + now.pieces
  assert now.stop == made.stop and (stop is None or stop == now.stop)
  assert len(pieces) == made.num_tokens
  return text, pieces, now.stop, made.num_tokens


def blocks(ids, width):
  return [ids[i : i + width] for i in range(0, len(ids), width)]


def oracle(tok, ids, strings, include):
  """Looks at the decoding of every prefix, as plain decoding would."""
  for num in range(1, len(ids) + 1):
    made = incremental.Detokenizer(tok)
    text = made.push(ids[:num]) + (made.finish() if num == len(ids) else '')
    ends = [(text.find(s) + len(s), -len(s), s) for s in strings if s in text]
    if ends:
      end, minus, stop = min(ends)
      return text[: end if include else end + minus], stop, num
  return tok.decode(ids), None, len(ids)


@pytest.mark.parametrize('kind', ['byte_level', 'llama'])
def test_blocks_of_any_width_give_what_single_tokens_give(kind):
  tok, rng = vocabularies.KINDS[kind](), random.Random(0)
  size, num_stopped = tok.vocab_size, 0
  frequent = [size - 2, *range(size - 14, size + 1), 0, 1]
  for _ in range(300):
    ids = [
      rng.choice(frequent) if rng.random() < 0.8 else rng.randrange(size)
      for _ in range(rng.randrange(10))
    ]
    whole = tok.decode(ids)
    starts = [rng.randrange(len(whole) + 1) for _ in range(rng.randrange(3))]
    strings = [whole[s : s + rng.randrange(1, 5)] for s in starts]
    strings = [s for s in strings if s]
    include = rng.random() < 0.5
    want = oracle(tok, ids, strings, include)
    for width in (1, 3, 8):
      text, pieces, stop, num = run(tok, blocks(ids, width), strings, include)
      assert (text, stop, num) == want, (ids, strings)
      assert ''.join(pieces) == text
    num_stopped += want[1] is not None
  assert num_stopped > 100


def test_stop_string_in_a_block_counts_the_tokens_up_to_its_end():
  tok = vocabularies.byte_level()
  ids = tok.encode('abcdefgh')
  assert [tok.token(i) for i in ids] == list('abcdefgh')
  # Two tokens of a block of eight, whatever the length cap would say.
  assert run(tok, [ids], ['b']) == ('a', ('a', ''), 'b', 2)
  assert run(tok, [ids], ['b'], include=True)[:2] == ('ab', ('a', 'b'))


def test_stop_string_at_every_place_of_the_rounds():
  tok = vocabularies.byte_level()
  for before in range(12):
    ids = tok.encode('x' * before + 'abc' + 'y' * 6)
    want = ('x' * before, ('x',) * before + ('',) * 3, 'abc', before + 3)
    for width in (1, 2, 4, 5, 16):
      assert run(tok, blocks(ids, width), ['abc']) == want


def test_token_that_the_stop_string_cuts_shows_its_part():
  tok = vocabularies.byte_level()
  ids = tok.encode('hell' + 'o')
  assert len(ids) == 2
  assert run(tok, [ids], ['lo']) == ('hel', ('hel', ''), 'lo', 2)


def test_bytes_at_the_end_belong_to_the_last_token():
  tok = vocabularies.byte_level()
  ids = tok.encode('a\U0001f642')[:3]
  assert run(tok, [ids]) == ('a\ufffd', ('a', '', '\ufffd'), None, 3)
  # Here the token that is cut short is text and bytes.
  assert run(tok, [ids], ['\ufffd'])[0] == 'a'
  made = delivery.Delivery(incremental.Detokenizer(tok), stops.Stops())
  assert made.push(ids[:2]) == delivery.Delivered(text='a', pieces=('a',))


def test_answer_of_no_token_shows_what_the_prompt_began():
  tok = vocabularies.byte_level()
  begun = tok.encode('\U0001f642')[:2]
  assert run(tok, [], prompt=begun)[:2] == ('\ufffd', ())
