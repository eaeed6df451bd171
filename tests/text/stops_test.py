# SPDX-License-Identifier: MIT
"""Stop strings are found wherever a text is cut, and nothing else is held."""

import itertools
import random

import pytest

from jspec import errors
from jspec.text import stops


def oracle(text, strings, include):
  """What is shown, and the stop string: looks at every prefix of the text."""
  for end in range(1, len(text) + 1):
    found = [s for s in strings if text[:end].endswith(s)]
    if found:
      longest = max(found, key=len)
      return text[: end if include else end - len(longest)], longest
  return text, None


def streamed(parts, strings, include=False):
  made = stops.Stops(strings, include=include)
  shown, found = '', None
  for part in parts:
    text, found = made.push(part)
    shown += text
  return shown + made.finish(), found


def cut(text, places):
  edges = [0, *sorted(places), len(text)]
  return [text[a:b] for a, b in itertools.pairwise(edges)]


def drawn(rng):
  text = ''.join(rng.choices('ab\n', k=rng.randrange(14)))
  strings = [
    ''.join(rng.choices('ab\n', k=rng.randrange(1, 5)))
    for _ in range(rng.randrange(4))
  ]
  return text, strings


def test_any_cut_gives_what_looking_at_every_prefix_gives():
  rng = random.Random(0)
  num_found = 0
  for _ in range(1500):
    text, strings = drawn(rng)
    include = rng.random() < 0.5
    places = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(8))]
    want = oracle(text, strings, include)
    assert streamed(cut(text, places), strings, include) == want
    num_found += want[1] is not None
  assert 300 < num_found < 1200


def test_all_two_piece_cuts_of_a_stop_string_find_it():
  text = 'One\n\nUser: two\n\nUser'
  for at in range(len(text) + 1):
    assert streamed(cut(text, [at]), ['\n\nUser']) == ('One', '\n\nUser')


def test_looking_at_each_push_alone_is_caught():
  rng = random.Random(1)
  wrong = 0
  for _ in range(300):
    text, strings = drawn(rng)
    parts = cut(text, range(0, len(text), 2))
    alone = []
    for part in parts:
      shown, found = oracle(part, strings, False)
      alone.append(shown)
      if found:
        break
    wrong += ''.join(alone) != oracle(text, strings, False)[0]
  assert wrong > 15


def test_only_the_possible_beginning_of_a_stop_string_is_held():
  rng = random.Random(2)
  for _ in range(500):
    text, strings = drawn(rng)
    made, shown, seen = stops.Stops(strings), '', ''
    for char in text:
      seen += char
      new, found = made.push(char)
      shown += new
      if found:
        break
      held = seen[len(shown) :]
      # What is held begins a stop string, and what begins one is held.
      begun = [
        seen[at:]
        for at in range(len(seen))
        if any(s.startswith(seen[at:]) for s in strings)
      ]
      assert held == (begun[0] if begun else '')


def test_nothing_comes_behind_a_stop_string():
  made = stops.Stops('ab')
  assert made.push('xab y') == ('x', 'ab')
  assert made.push('zz') == ('', 'ab')
  assert (made.finish(), made.found) == ('', 'ab')


def test_text_without_stop_strings_is_not_held():
  made = stops.Stops([])
  assert made.push('ab') == ('ab', None)
  assert made.finish() == ''


@pytest.mark.parametrize('strings', [('',), [''], ['a', '']])
def test_stop_string_that_ends_every_text_is_refused(strings):
  with pytest.raises(errors.UserError, match='end every answer'):
    stops.Stops(strings)
