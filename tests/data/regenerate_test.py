# SPDX-License-Identifier: MIT
"""Regeneration continues where it was killed, and mixes nothing."""

import json

import pytest

from jspec import errors
from jspec.data import regenerate, sources

PROMPTS = [
  sources.Prompt('a', ('one',)),
  sources.Prompt('b', ('one', 'two')),
  sources.Prompt('c', ('one',)),
]
SAME = {'target': 'toy', 'temperature': 0.0}


def answer(indices):
  return [
    {'id': regenerate.record_id(PROMPTS[i].id, turn), 'ids': [i, turn]}
    for i in indices
    for turn in range(len(PROMPTS[i].turns))
  ]


def run(out, answer=answer, same=SAME):
  return regenerate.run(PROMPTS, out, answer, same=same, num_at_once=2)


def ids(out):
  return [json.loads(line)['id'] for line in out.read_text().splitlines()]


def test_all_turns_are_written_once(tmp_path):
  out = tmp_path / 'answers.jsonl'
  assert run(out) == 3
  assert ids(out) == ['a#1', 'b#1', 'b#2', 'c#1']
  whole = out.read_bytes()
  assert run(out) == 0
  assert out.read_bytes() == whole


def test_a_killed_run_is_continued_at_any_byte(tmp_path):
  out = tmp_path / 'answers.jsonl'
  run(out)
  whole = out.read_bytes()
  for size in range(len(whole)):
    out.write_bytes(whole[:size])
    run(out)
    assert sorted(ids(out)) == ['a#1', 'b#1', 'b#2', 'c#1']


def test_what_was_answered_before_a_failure_stays(tmp_path):
  out = tmp_path / 'answers.jsonl'

  def fails_later(indices):
    if 2 in indices:
      raise KeyError
    return answer(indices)

  with pytest.raises(KeyError):
    run(out, fails_later)
  assert ids(out) == ['a#1', 'b#1', 'b#2']
  assert run(out) == 1


def test_another_setting_is_not_mixed_in(tmp_path):
  out = tmp_path / 'answers.jsonl'
  run(out)
  with pytest.raises(errors.UserError, match='temperature'):
    run(out, same={**SAME, 'temperature': 1.0})


def test_bad_input_is_refused(tmp_path):
  with pytest.raises(errors.UserError, match='.jsonl'):
    run(tmp_path / 'answers.json')
  with pytest.raises(errors.UserError, match='two prompts'):
    regenerate.run(
      [PROMPTS[0], PROMPTS[0]],
      tmp_path / 'a.jsonl',
      answer,
      same=SAME,
      num_at_once=1,
    )
