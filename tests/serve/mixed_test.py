# SPDX-License-Identifier: MIT
"""Requests with different drafters share batches, and nothing else."""

import dataclasses

import numpy as np
import pytest

from jspec import errors
from jspec.decode import generate, sampling
from jspec.drafters import mixed, ngram
from jspec.serve import asks
from jspec.serve import engine as engine_lib
from jspec.serve import offline as offline_lib
from jspec.testing import toy
from tests.evals import unchecked
from tests.serve import small

pytestmark = pytest.mark.slow  # One engine, three decoders: 80 s to compile.

NAMES = ('ngram', 'dflash', 'none')
SETTINGS = dataclasses.replace(small.SETTINGS, num_budgets=2)


@pytest.fixture(scope='module')
def target():
  return toy.target(max_len=small.MAX_LEN)


@pytest.fixture(scope='module')
def drafters(target):
  """Of different depth; the second is hardly ever right."""
  return {
    'ngram': ngram.NGram(2),
    'dflash': toy.drafter(target, taps=(0, 2)),
  }


def make(target, drafter):
  with unchecked.constructors():
    engine = engine_lib.Engine(target, drafter, SETTINGS)
  # Whole drafts: what a policy verifies depends on the neighbours.
  engine.forms.pinned = 'full'
  return engine


@pytest.fixture(scope='module')
def served(target, drafters):
  return make(target, mixed.Mixed(drafters))


def prompts():
  """Repetitive, so that lookup drafts; of the same first page."""
  text = np.tile(toy.prompts(1, 5, seed=8)[0], 8).tolist()
  return [text[:length] for length in (34, 39, 29)]


def wanted(temperature=0.0, **fields):
  return [
    asks.Ask(
      params=sampling.SamplingParams(
        seed=i, max_tokens=20 + i, temperature=temperature
      ),
      **fields,
    )
    for i in range(3)
  ]


def naming(asked, names=NAMES):
  return [
    dataclasses.replace(ask, drafter=name)
    for ask, name in zip(asked, names, strict=True)
  ]


def counted(engine, asked, given=None):
  """Answers, and by request how many drafts of each depth ran and stayed."""
  given = prompts() if given is None else given
  ids = [engine.submit(*both) for both in zip(given, asked, strict=True)]
  counts = {request_id: np.zeros((2, 8), int) for request_id in ids}
  answers = {request_id: [] for request_id in ids}
  answered = engine.metrics.answered

  def count(answer, drafter):
    depth = len(answer.num_drafted)
    found = counts[engine._admitted[answer.row].request_id]
    found[:, :depth] += [answer.num_drafted, answer.num_accepted]
    answered(answer, drafter)

  engine.metrics.answered = count
  while engine.has_work:
    for event in engine.step():
      answers[event.request_id] += event.tokens
  engine.metrics.answered = answered
  return [answers[i] for i in ids], [counts[i] for i in ids]


@pytest.fixture(scope='module')
def alone(target, drafters):
  """By drafter and temperature: each prompt decoded offline, by itself."""
  found = {}
  for name, drafter in {**drafters, 'none': None}.items():
    with unchecked.constructors(), pytest.MonkeyPatch.context() as patch:
      patch.setattr(generate, 'PREFILL_CHUNKS', (16,))
      offline = generate.Decoder(
        target,
        drafter,
        max_len=small.MAX_LEN,
        num_rows=1,
        num_rounds=4,
        page_size=8,
      )
      for heat in (0.0, 0.9):
        found[name, heat] = [
          offline.generate([prompt], [ask.params])[0]
          for prompt, ask in zip(prompts(), wanted(heat), strict=True)
        ]
  return found


def counts_of(output):
  counts = np.zeros((2, 8), int)
  depth = len(output.num_drafted)
  counts[:, :depth] = output.num_drafted, output.num_accepted
  return counts


@pytest.mark.parametrize('temperature', [0.0, 0.9])
@pytest.mark.parametrize('turn', [0, 1, 2])
def test_tokens_and_drafts_are_those_of_each_alone(
  served, alone, temperature, turn
):
  names = NAMES[turn:] + NAMES[:turn]
  asked = naming(wanted(temperature), names)
  answers, counts = counted(served, asked)
  for i, name in enumerate(names):
    assert answers[i] == alone['none', temperature][i].tokens
    want = counts_of(alone[name, temperature][i])
    np.testing.assert_array_equal(counts[i], want, err_msg=name)
    assert (counts[i].sum() > 0) == (name != 'none')


def test_the_counts_tell_drafters_apart(alone):
  """Or the test above would pass whoever drafts."""
  ngram_counts, dflash_counts = (
    [counts_of(output).tolist() for output in alone[name, 0.0]]
    for name in NAMES[:2]
  )
  for a, b in zip(ngram_counts, dflash_counts, strict=True):
    assert a != b
  assert np.sum([accepted for _, accepted in ngram_counts]) > 0


def test_prefixes_are_found_under_the_same_drafter_only(served):
  trie = served._scheduler.ledger.trie
  prompt = toy.prompts(1, 33, seed=21)[0].tolist()
  hits, answers = [], []
  for name in ('dflash', 'ngram', 'none', 'dflash', None, 'none', 'ngram'):
    before = trie.num_hit_tokens
    ask = asks.Ask(params=sampling.SamplingParams(max_tokens=9), drafter=name)
    answers += offline_lib.generate(served, [prompt], ask)
    hits.append(trie.num_hit_tokens - before)
  # No name is the first name.
  assert hits == [0, 0, 0, 24, 24, 24, 24]
  assert all(answer == answers[0] for answer in answers)


@pytest.mark.parametrize('name', NAMES[:2])
def test_a_hit_drafts_as_a_cold_start(served, name):
  """Its member knows of what was found as much as of what was read."""
  prompt = toy.prompts(1, 41, seed=22)[0].tolist()
  trie = served._scheduler.ledger.trie
  ask = asks.Ask(params=sampling.SamplingParams(max_tokens=20), drafter=name)
  before = trie.num_hit_tokens
  runs = [counted(served, [ask], [prompt]) for _ in range(2)]
  assert trie.num_hit_tokens > before
  assert runs[0][0] == runs[1][0]
  np.testing.assert_array_equal(runs[0][1], runs[1][1])


def test_counts_by_drafter_add_up(served):
  offline_lib.generate(served, prompts(), naming(wanted()))
  of = served.metrics.by_drafter
  assert set(of) == set(NAMES)
  assert of['none'].num_drafted.sum() == 0 < of['none'].num_tokens
  assert of['ngram'].num_accepted.sum() > 0
  for name in ('num_tokens', 'num_rounds', 'num_drafted', 'num_accepted'):
    total = sum(np.asarray(getattr(one, name)) for one in of.values())
    np.testing.assert_array_equal(total, getattr(served.metrics, name))


def test_unknown_drafters_are_refused_by_name(served):
  with pytest.raises(errors.UserError, match="'mtp': there are ngram, dflash"):
    served.submit([1, 2], asks.Ask(drafter='mtp'))
  assert not served.has_work
