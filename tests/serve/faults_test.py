# SPDX-License-Identifier: MIT
"""Sizes at the edge, requests that end at a bad moment, counts that fit."""

import dataclasses

import numpy as np
import pytest

from jspec import errors
from jspec.decode import generate, sampling
from jspec.serve import asks
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import drafters, unchecked
from tests.serve import small

pytestmark = pytest.mark.slow

MAX_LEN = small.MAX_LEN
GREEDY = sampling.SamplingParams(max_tokens=12)


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=MAX_LEN)


@pytest.fixture(scope='module')
def known(target):
  return drafters.Known(target, 4, num_right=3)


@pytest.fixture(scope='module')
def served(target, known):
  return small.make(target, known)


@pytest.fixture(scope='module')
def offline(target, known):
  """Decodes with the same drafter, so that its counts can be compared."""
  with unchecked.constructors(), pytest.MonkeyPatch.context() as patch:
    patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
    return generate.Decoder(
      target, known, max_len=MAX_LEN, num_rows=2, page_size=8
    )


def prompt(length, seed=None):
  return toy.prompts(1, length, seed=length if seed is None else seed)[
    0
  ].tolist()


def drain(engine):
  """Events by request until nothing is left to do."""
  found = {}
  while engine.has_work:
    for event in engine.step():
      found.setdefault(event.request_id, []).append(event)
  engine._scheduler.check()
  return found


def tokens(events):
  return [token for event in events for token in event.tokens]


# --- sizes


@pytest.mark.parametrize(
  'changes',
  [
    # A page longer than the context, and a pool smaller than every bucket.
    {'page_size': 128, 'num_pages': 1, 'num_rounds': 1},
    # Pages shorter than what a round may commit.
    {'page_size': 2, 'num_pages': 4, 'max_len': 8},
    # One row, one request's worth of pages, prompts token by token.
    {
      'max_rows': 1,
      'row_buckets': (1,),
      'num_pages': 8,
      'chunk_sizes': (1,),
      'max_prefill_tokens': 1,
    },
  ],
  ids=['one page', 'tiny pages', 'one row'],
)
def test_sizes_at_the_edge_give_the_same_tokens(target, offline, changes):
  engine = small.make(target, drafters.Known(target, 4), **changes)
  limit = engine.sizes.scheduler.limit
  given = [prompt(n) for n in (1, 2, limit // 2, limit - 1)]
  # More than fits is cut to what fits.
  wanted = sampling.SamplingParams(max_tokens=1000)
  got = offline_lib.generate(engine, given, wanted)
  assert [len(answer) for answer in got] == [limit - len(p) for p in given]
  fitting = [
    dataclasses.replace(wanted, max_tokens=limit - len(p)) for p in given
  ]
  assert got == [out.tokens for out in offline.generate(given, fitting)]
  engine._scheduler.check()


# --- requests


def test_an_id_in_use_is_refused_and_changes_nothing(served, offline):
  served.submit(prompt(9), asks.Ask(params=GREEDY), request_id='a')
  served.step()
  with pytest.raises(errors.UserError, match="request 'a' is running already"):
    served.submit(prompt(5), asks.Ask(params=GREEDY), request_id='a')
  with pytest.raises(errors.UserError, match='outside the target'):
    served.submit([toy.VOCAB_SIZE], asks.Ask(params=GREEDY), request_id='b')
  served.submit(prompt(5), asks.Ask(params=GREEDY), request_id='b')
  found = drain(served)
  want = offline.generate([prompt(9), prompt(5)], GREEDY)
  assert tokens(found['a']) == want[0].tokens
  assert tokens(found['b']) == want[1].tokens


@pytest.mark.parametrize('num_steps', range(8))
def test_a_request_may_be_cancelled_at_any_moment(served, offline, num_steps):
  """Waiting, prefilling, decoding, and in the launch that would end it."""
  cut, other = prompt(50), prompt(7)
  served.submit(cut, asks.Ask(params=GREEDY), request_id='cut')
  served.submit(other, asks.Ask(params=GREEDY), request_id='other')
  found = {'cut': [], 'other': []}
  for _ in range(num_steps):
    for event in served.step():
      found[event.request_id].append(event)
  is_over = any(event.finish_reason for event in found['cut'])
  assert served.cancel('cut') is not is_over
  assert is_over or num_steps < 7  # Both happen.
  for request_id, events in drain(served).items():
    assert request_id == 'other'
    found['other'] += events
  want = offline.generate([cut, other], GREEDY)
  assert tokens(found['other']) == want[1].tokens
  got = tokens(found['cut'])
  assert got == want[0].tokens[: len(got)]


def test_log_probabilities_of_a_prompt_are_whole_when_an_id_comes_again(served):
  ask = asks.Ask(params=GREEDY, num_prompt_logprobs=1)
  for _ in range(2):
    served.submit(prompt(41), ask, request_id='again')
    (events,) = drain(served).values()
    entries = [e for event in events for e in event.prompt_logprobs or ()]
    assert len(entries) == 40


def test_nothing_of_a_cancelled_request_reaches_the_next_of_its_id(served):
  ask = asks.Ask(params=GREEDY, num_prompt_logprobs=1)
  served.submit(prompt(41, seed=77), ask, request_id='same')
  served.step()
  served.cancel('same')
  served.submit(prompt(5), ask, request_id='same')
  (events,) = drain(served).values()
  entries = [e for event in events for e in event.prompt_logprobs or ()]
  assert len(entries) == 4


# --- counts


def test_counts_are_those_of_the_events_and_of_offline_decoding(
  served, offline
):
  given = small.prompts()
  wanted = small.requests()
  before = dataclasses.replace(served.metrics)
  before.num_drafted = served.metrics.num_drafted.copy()
  before.num_accepted = served.metrics.num_accepted.copy()
  served.forms.pinned = 'full'
  answers = offline_lib.generate(
    served, given, [asks.Ask(params=params) for params in wanted]
  )
  served.forms.pinned = None
  outputs = offline.generate(given, wanted)
  now = served.metrics
  assert now.num_tokens - before.num_tokens == sum(map(len, answers))
  rounds = sum(out.num_rounds for out in outputs)
  assert now.num_rounds - before.num_rounds == rounds
  for name in ('num_drafted', 'num_accepted'):
    want = np.sum([getattr(out, name) for out in outputs], axis=0)
    assert (getattr(now, name) - getattr(before, name)).tolist() == (
      want.tolist()
    )
  assert now.num_drafted.sum() > now.num_accepted.sum() > 0


def test_tokens_that_came_too_late_are_not_counted(served):
  before = served.metrics.num_tokens
  for i in range(4):
    served.submit(prompt(3 + i), asks.Ask(params=GREEDY), request_id=i)
  events = served.step() + served.step()
  served.cancel(0)
  events += [event for found in drain(served).values() for event in found]
  assert served.metrics.num_tokens - before == len(tokens(events))
  assert served._scheduler.num_dropped > 0


# --- a target that breaks


def test_a_row_without_logits_fails_alone_when_drafts_are_sampled(
  target, offline
):
  """With every place for a stop id taken, too."""
  given = small.prompts()
  expected = [out.tokens for out in offline.generate(given, GREEDY)]
  said = {token for out in expected for token in out}
  unsaid = [i for i in range(toy.VOCAB_SIZE) if i not in said][:8]
  assert len(unsaid) == 8
  wanted = dataclasses.replace(GREEDY, stop_ids=tuple(unsaid))
  bad = expected[4][6]
  broken = {i for i, out in enumerate(expected) if bad in out}
  assert 0 < len(broken) < len(expected)
  law = np.full((toy.VOCAB_SIZE,), 1 / toy.VOCAB_SIZE)
  engine = small.make(
    small.Poisoned(target, bad),
    drafters.Sampled(law),
    rule='token',
    policies=('static',),
  )
  for form in ('plain', 'full'):
    engine.forms.pinned = form
    for i, tokens_of in enumerate(given):
      engine.submit(tokens_of, asks.Ask(params=wanted), request_id=i)
    found = drain(engine)
    for i, out in enumerate(expected):
      cut = out.index(bad) if i in broken else len(out)
      assert tokens(found[i]) == out[:cut]
      reason = 'failed' if i in broken else 'length'
      assert found[i][-1].finish_reason == reason
  assert engine.metrics.num_failed == 2 * len(broken)
