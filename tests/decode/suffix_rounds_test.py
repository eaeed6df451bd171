# SPDX-License-Identifier: MIT
"""Whole generations with suffix drafts, under the compiled decoder."""

import pytest

from jspec.decode import generate, sampling
from jspec.drafters import suffix
from jspec.testing import toy

MAX_LEN = 96


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


def requests():
  kinds = ({}, {'temperature': 0.8}, {'temperature': 1.3, 'top_k': 5})
  return [
    sampling.SamplingParams(seed=i, max_tokens=24 + i % 5, **kinds[i % 3])
    for i in range(7)
  ]


def prompts():
  rows = [toy.prompts(1, n, seed=n)[0].tolist() for n in (1, 4, 9, 17, 30)]
  return [*rows, [5, 6, 7] * 8, rows[2]]


def make(target, drafter):
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    return generate.Decoder(target, drafter, max_len=MAX_LEN, num_rows=3)


@pytest.fixture(scope='module')
def plain(target):
  outputs = make(target, None).generate(prompts(), requests())
  return [out.tokens for out in outputs]


@pytest.fixture(
  scope='module', params=[pytest.param('path', marks=pytest.mark.slow), 'tree']
)
def decoding(request, target):
  """A compiled decoder and what its drafter's host remembers."""
  config = suffix.Config(
    tree_size=9 if request.param == 'tree' else 0,
    scope='global',
    min_prob=0.0,
  )
  drafter = suffix.Suffix(config)
  return make(target, drafter), drafter.host


@pytest.mark.slow
def test_tokens_are_those_of_plain_decoding(decoding, plain):
  decoder, host = decoding
  # Seven requests replace each other on three rows, twice.
  first = decoder.generate(prompts(), requests())
  again = decoder.generate(prompts(), requests())
  assert [out.tokens for out in first] == plain
  assert [out.tokens for out in again] == plain
  assert sum(sum(out.num_drafted) for out in first) > 0
  # The second time the answers are known.
  rounds = [sum(out.num_rounds for out in outs) for outs in (first, again)]
  assert rounds[1] < 0.7 * rounds[0]
  # What is remembered are answers without the prompt, less the last round.
  remembered = list(host._finished._texts.values())
  assert len(remembered) >= 7
  for answer in remembered:
    assert any(tokens[: len(answer)] == answer for tokens in plain)


def test_repeating_text_takes_few_rounds(decoding):
  request = sampling.SamplingParams(max_tokens=80)
  out = decoding[0].generate([[62, 5, 61]], request)[0]
  # A random greedy model soon goes in circles.
  assert len(set(out.tokens[-30:])) < 25
  assert len(out.tokens) / out.num_rounds > 1.5
