# SPDX-License-Identifier: MIT
"""A walk through JSON stops where the standard parser would, in any steps."""

import json
import random

from jspec.text.formats import calls, growing
from tests.text.formats import json_text_test


def walked(text, places=()):
  """Where a text, walked through in parts, has come to."""
  place, num = growing.Place(), 0
  edges = [0, *sorted(places), len(text)]
  for start, stop in zip(edges, edges[1:], strict=False):
    place, end = growing.advance(place, text[start:stop])
    num = start + end
    if num < stop:
      break
  return place, num


def test_documents_are_done_at_their_end_and_not_before():
  rng = random.Random(0)
  for _ in range(60):
    value = {'k': json_text_test.value(rng), 'l': [json_text_test.value(rng)]}
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    for at in range(len(text)):
      place, num = walked(text[:at])
      assert (num, place.is_done) == (at, False)
    place, num = walked(text + ' x')
    assert place.is_done and num == len(text)


def test_any_text_is_judged_as_the_standard_parser_judges_it():
  rng, decoder = random.Random(1), json.JSONDecoder()
  parts = ['{', '}', '[', ']', ',', ':', '"', '"a"', '1', '-', '.5', 'e3', '0']
  parts += ['true', 'nul', ' ', '\\', 'u00e', '\n']
  kinds = {'done': 0, 'open': 0, 'broken': 0}
  for _ in range(2000):
    text = rng.choice('{[') + ''.join(rng.choices(parts, k=rng.randrange(8)))
    place, num = walked(text)
    try:
      end = decoder.raw_decode(text)[1]
    except ValueError:
      end = None
    assert (num if place.is_done else None) == end, text
    kind = 'done' if end else 'open' if num == len(text) else 'broken'
    kinds[kind] += 1
    if kind == 'broken':  # No text that begins so is JSON, one less may be.
      assert walked(text[: num + 1] + '"}]')[1] == num
    places = [rng.randrange(len(text) + 1) for _ in range(3)]
    assert walked(text, places) == (place, num) or kind == 'broken'
    assert walked(text, range(len(text)))[1] == num
  assert min(kinds.values()) > 50, kinds


def test_what_no_parser_should_see_is_refused():
  assert walked('[' * 10_000)[1] == growing.MAX_DEPTH
  assert walked('{"a": NaN}')[1] == 6
  assert walked('"a"')[1] == 0


def test_call_begins_with_its_name_and_an_object():
  def opened(text):
    return growing.opened(text, 0, ('arguments',), None)

  for text in (
    '{"name": "f", "arguments": {',
    '{ "name" :"f","arguments":\n{',
    '{"type": "function", "name": "f", "arguments": {"a"',
  ):
    found = opened(text)
    assert found.calls == (calls.ToolCall(name='f', arguments=''),)
    assert text[found.end] == '{'
  for text in (
    '{"name": "f", "arguments": ',
    '{"name": "f", "arguments": [',
    '{"name": "f", "parameters": {',
    '{"name": "", "arguments": {',
    '{"name": "\\u0066", "arguments": {',
    '{"arguments": {}, "name": "f"',
  ):
    assert opened(text) is None, text
