# SPDX-License-Identifier: MIT
"""Acceptance with drafters whose numbers are known to the last digit."""

import copy
import itertools
import json

import pytest

from jspec import conversation, errors
from jspec.data import sources
from jspec.decode import generate, sampling
from jspec.evals import acceptance, repetition
from jspec.text import chat
from tests.evals import small

K = small.NUM_DRAFT_TOKENS
# Four whole rounds of an oracle; too short to be told repeating.
PARAMS = sampling.SamplingParams(max_tokens=20)


def talk():
  return [
    sources.Prompt('a', ('w5 w9 w30', 'w8'), 'chat'),
    sources.Prompt('b', ('w1 w2 w3 w4 w5 w6 w7',), 'math'),
    sources.Prompt('c', ('w44',), 'chat'),
  ]


def measure(loaded, drafter, num_right=K, **options):
  if drafter is not None:
    drafter.set(num_right)
  return acceptance.run(loaded, drafter, talk(), PARAMS, num_rows=2, **options)


def test_oracle_has_rate_1_and_k_plus_1_tokens_a_round(loaded, known):
  result = measure(loaded, known)
  for part in (result['overall'], *result['domains'].values()):
    assert part['tokens_per_round'] == K + 1
    assert part['num_accepted'] == K
    assert part['accepted_if_drafted'] == [1.0] * K
    assert part['accepted_per_round'] == [1.0] * K
  assert result['overall']['num_rounds'] == 4 * 4
  assert result['num_draft_tokens'] == K
  assert result['repeating'] == []
  assert result['num_same_as_plain'] == 4


def test_wrong_drafter_has_rate_0_and_1_token_a_round(loaded, known):
  overall = measure(loaded, known, num_right=0, against_plain=False)['overall']
  assert overall['tokens_per_round'] == 1.0
  assert overall['num_accepted'] == 0.0
  assert overall['accepted_if_drafted'] == [0.0] * K
  assert overall['accepted_per_round'] == [0.0] * K


def test_half_right_drafter_has_rates_by_depth(loaded, known):
  overall = measure(loaded, known, num_right=3, against_plain=False)['overall']
  # Rounds of 3 accepted and a bonus: 20 tokens are five.
  assert overall['tokens_per_round'] == 4.0
  assert overall['num_accepted'] == 3.0
  assert overall['accepted_if_drafted'] == [1.0, 1.0, 1.0, 0.0]


def test_rates_tell_drafted_from_all_rounds(loaded, known):
  """At the budget's end only what fits is drafted."""
  result = acceptance.run(
    loaded,
    known,
    talk(),
    sampling.SamplingParams(max_tokens=7),
    num_rows=2,
    against_plain=False,
  )
  overall = result['overall']
  # 5 tokens, then a round with room for 2: one draft and its bonus.
  assert overall['num_rounds'] == 8
  assert overall['drafted_at'] == overall['accepted_at'] == [8, 4, 4, 4]
  assert overall['accepted_if_drafted'] == [1.0] * K
  assert overall['accepted_per_round'] == [1.0, 0.5, 0.5, 0.5]
  assert overall['tokens_per_round'] == 3.5
  assert overall['num_accepted'] == 2.5


def test_domains_sum_to_all(loaded, known):
  result = measure(loaded, known)
  assert list(result['domains']) == ['chat', 'math']
  for key in ('num_replies', 'num_tokens', 'num_rounds'):
    parts = sum(part[key] for part in result['domains'].values())
    assert parts == result['overall'][key]
  assert result['domains']['chat']['num_replies'] == 3  # two turns and one


def test_no_drafter_has_no_rates(loaded):
  result = measure(loaded, None)
  overall = result['overall']
  assert overall['tokens_per_round'] == 1.0
  assert overall['num_accepted'] is None
  assert overall['accepted_if_drafted'] == []
  assert result['speedup'] is result['num_same_as_plain'] is None
  assert 'n/a' in acceptance.table(result)


def test_drafter_that_never_drafts_is_not_rated(loaded, known):
  known.set(K, is_silent=True)
  result = acceptance.run(
    loaded, known, talk(), PARAMS, num_rows=2, against_plain=False
  )
  overall = result['overall']
  assert overall['drafted_at'] == [0] * K
  assert overall['accepted_if_drafted'] == [None] * K
  assert overall['accepted_per_round'] == [None] * K
  assert overall['num_accepted'] is None
  assert overall['tokens_per_round'] == 1.0
  assert 'n/a' in acceptance.table(result)


def test_speed_is_told_against_plain_decoding(loaded, known):
  result = measure(loaded, known)
  fast, slow = result['speed'], result['plain_speed']
  num_tokens = result['overall']['num_tokens']
  assert fast['tokens_per_s'] == pytest.approx(num_tokens / fast['seconds'])
  assert fast['ms_per_token'] == pytest.approx(1000 / fast['tokens_per_s'])
  assert result['speedup'] == pytest.approx(slow['seconds'] / fast['seconds'])
  skipped = measure(loaded, known, against_plain=False)
  assert skipped['speedup'] is skipped['plain_speed']['tokens_per_s'] is None
  lines = acceptance.table(skipped).split('\n')
  assert any(line.split() == ['plain', 'n/a', 'n/a', 'n/a'] for line in lines)


def test_repeating_answers_are_named_and_left_out(loaded, known, monkeypatch):
  want = measure(loaded, known)
  calls = itertools.count()
  monkeypatch.setattr(repetition, 'repeats', lambda tokens: next(calls) == 0)
  got = measure(loaded, known)
  assert got['repeating'] == [['a', 0]]
  assert got['overall']['num_replies'] == 3
  assert got['domains']['chat']['num_replies'] == 2
  assert got['overall_with_repeating'] == want['overall']
  assert got['num_same_as_plain'] == 3
  assert '1 of 4 answers repeat themselves' in acceptance.table(got)


def test_all_answers_repeating_leaves_no_number(loaded, known, monkeypatch):
  monkeypatch.setattr(repetition, 'repeats', lambda tokens: True)
  result = measure(loaded, known)
  assert len(result['repeating']) == 4
  assert result['overall']['tokens_per_round'] is None
  assert result['speed']['tokens_per_s'] is result['speedup'] is None
  assert 'n/a' in acceptance.table(result)


@pytest.mark.slow
def test_turns_follow_the_answers_before_them(loaded, known):
  known.set(2)
  decoder = generate.Decoder(loaded.model, known, num_rows=2, max_len=64)
  replies = conversation.answer(loaded, decoder, talk(), [PARAMS] * 3)
  assert [(r.id, r.turn) for r in replies] == [
    ('a', 0),
    ('a', 1),
    ('b', 0),
    ('c', 0),
  ]
  first, second = replies[:2]
  assert first.prompt_tokens == [60, 5, 9, 30, 61]
  assert second.prompt_tokens == [
    60,
    5,
    9,
    30,
    61,
    *first.output.tokens,
    60,
    8,
    61,
  ]


def test_result_is_json_and_table_names_its_numbers(loaded, known):
  result = measure(loaded, known, drafter_name='oracle')
  assert json.loads(json.dumps(result)) == result
  text = acceptance.table(result)
  for words in (
    'drafter oracle',
    f'template {chat.fingerprint(loaded.template)}, without variables',
    'tokens/round',
    'accepted/round',
    'chat',
    'math',
    'if drafted',
    'of all rounds',
    'tokens/s',
    'ms/token',
  ):
    assert words in text
  assert '5.00' in text and '4.00' in text


def test_nothing_to_run_is_refused(loaded, known):
  with pytest.raises(errors.UserError, match='no prompts'):
    acceptance.run(loaded, known, [], PARAMS)


def test_context_that_is_too_short_is_refused(loaded, known):
  long = sources.Prompt('long', (' '.join(['w1'] * 80),))
  with pytest.raises(errors.UserError, match='tokens'):
    acceptance.run(loaded, known, [long], PARAMS, num_rows=2)


@pytest.mark.slow
def test_summary_does_not_change_the_replies(loaded, known):
  decoder = generate.Decoder(loaded.model, known, num_rows=2, max_len=64)
  replies = conversation.answer(loaded, decoder, talk(), [PARAMS] * 3)
  before = copy.deepcopy(replies)
  acceptance.summarise(replies, K)
  assert replies == before


@pytest.mark.parametrize(
  'tokens, expected',
  [
    (list(range(200)), False),
    ([1, 2, 3, 4, 5] * 40, True),
    ([7] * 200, True),
    ([7] * 20, False),  # too short to tell
    (list(range(100)) + [3, 4] * 50, True),  # goes wrong half way
    ([9] * 12 + list(range(100)), False),
  ],
)
def test_repetition_is_told(tokens, expected):
  assert repetition.repeats(tokens) is expected


def test_distinct_is_a_share():
  assert repetition.distinct([1, 2, 3, 4, 1, 2, 3, 4]) == 4 / 5
  assert repetition.distinct([1, 2, 3]) is None
