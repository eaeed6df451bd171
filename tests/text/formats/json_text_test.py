# SPDX-License-Identifier: MIT
"""The scanner agrees with the standard parser, and knows what is unfinished."""

import json
import random

import pytest

from jspec.text.formats import calls, json_text


def value(rng, depth=0):
  kind = rng.randrange(7 if depth < 3 else 5)
  if kind < 2:
    return rng.choice(['', 'a"\\b', '\u6771\n', '}]', '\U0001f642', 'n'])
  if kind < 4:
    return rng.choice([0, -1, 12, 1.5, -2e-7, 1e30])
  if kind == 4:
    return rng.choice([True, False, None])
  items = [value(rng, depth + 1) for _ in range(rng.randrange(3))]
  if kind == 5:
    return items
  return dict(zip('ab"', items, strict=False))


def test_documents_are_complete_at_their_end_and_unfinished_before():
  rng = random.Random(0)
  for _ in range(150):
    found = {'k': value(rng), 'l': [value(rng)]}
    text = json.dumps(
      found, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])
    )
    for at in range(len(text)):
      assert json_text.scan('x' + text[:at], 1) == calls.More(), text[:at]
    whole = json_text.scan('x' + text + '}', 1)
    assert whole.end == len(text) + 1
    names = {n: ('x' + text)[a:b] for n, a, b in whole.members}
    assert {n: json.loads(t) for n, t in names.items()} == found


def test_any_text_is_judged_as_the_standard_parser_judges_it():
  rng, decoder = random.Random(1), json.JSONDecoder()
  parts = ['{', '}', '[', ']', ',', ':', '"', '"a"', '1', '-', '.5', 'e3', '0']
  parts += ['true', 'nul', ' ', '\\', 'u00e', '\n']
  kinds = {'value': 0, 'more': 0, 'none': 0}
  for _ in range(4000):
    text = rng.choice('{[') + ''.join(rng.choices(parts, k=rng.randrange(8)))
    found = json_text.scan(text, 0)
    try:
      end = decoder.raw_decode(text)[1]
    except ValueError:
      end = None
    assert (found.end if isinstance(found, json_text.Value) else None) == end
    if found is None:  # And it stays so.
      kinds['none'] += 1
      more = text + ''.join(rng.choices(parts, k=3))
      assert json_text.scan(more, 0) is None
    else:
      kinds['value' if end else 'more'] += 1
  assert min(kinds.values()) > 100, kinds


def test_text_that_no_parser_should_see_is_refused():
  deep = '[' * 10_000
  assert json_text.scan(deep, 0) is None
  assert json_text.scan('{"a": NaN}', 0) is None
  assert json_text.scan('"a"', 0) is None


@pytest.mark.parametrize(
  'text, want',
  [
    ('{"name": "f"}', '{}'),
    ('{"name": "f", "arguments": {"a": 1.50}}', '{"a": 1.50}'),
    ('{"arguments": {}, "id": [1], "name": "f"}', '{}'),
    (r'{"name": "f", "arguments": "{\"a\": 1}"}', '{"a": 1}'),
    ('{"name": "f", "arguments": {"a": 1e999}}', '{"a": 1e999}'),
    ('{"name": "f", "arguments": {"a": %s}}' % ('9' * 5000), None),
    ('{"name": %s, "arguments": {}}' % ('9' * 5000), 'refused'),
    ('{"name": "f", "arguments": [1]}', 'refused'),
    ('{"name": "f", "arguments": null}', 'refused'),
    ('{"name": "f", "arguments": "x"}', 'refused'),
    ('{"name": "f", "arguments": ""}', 'refused'),
    ('{"name": "f", "arguments": {}, "parameters": {}}', 'refused'),
    ('{"name": "f", "name": "g"}', 'refused'),
    ('{"name": "", "arguments": {}}', 'refused'),
    (r'{"name": "\ud800", "arguments": {}}', 'refused'),
    (r'{"name": "f", "arguments": "{\"\ud800\": 1}"}', 'refused'),
    ('{"arguments": {}}', 'refused'),
    ('[]', 'refused'),
    ('[{"name": "f"}, 1]', 'refused'),
    ('[["name"]]', 'refused'),
  ],
)
def test_call_is_an_object_with_a_name_and_arguments(text, want):
  found = json_text.read_calls(
    text, 0, keys=('arguments', 'parameters'), needs_arguments=False
  )
  if want == 'refused':
    assert found is None
  else:
    want = '{"a": %s}' % ('9' * 5000) if want is None else want
    (call,) = found.calls
    assert (call.name, call.arguments) == ('f', want)
    assert call.arguments.encode()
