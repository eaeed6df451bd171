# SPDX-License-Identifier: MIT
"""The guard in short runs: what its first tries cost."""

import numpy as np
import pytest

from jspec.depth import guard, labels
from tests.depth import guard_world

FORMS = (guard.ADAPTIVE, guard.FULL, guard.PLAIN)
SEEDS = range(6)


@pytest.fixture(scope='module')
def means():
  found = {}
  for rows in guard_world.PRICES:
    for first in (0.25, 0.6):
      machine = guard_world.Machine(rows, first, np.random.default_rng(9))
      found[rows, first] = machine.means()
  return found


def share(means, seed, rows, first, num_launches, before=(), **options):
  rng = np.random.default_rng(seed)
  subject = guard.Guard(guard_world.NUM_DRAFTS, forms=FORMS)
  for other in before:
    machine = guard_world.Machine(other, first, rng)
    guard_world.run(subject, machine, means[other, first], 60)
  machine = guard_world.Machine(rows, first, rng)
  return guard_world.run(
    subject, machine, means[rows, first], num_launches, **options
  )


def mean_share(*args, **options):
  return np.mean([share(args[0], s, *args[1:], **options)[0] for s in SEEDS])


@pytest.mark.few(1)
@pytest.mark.parametrize('rows', [1, 4, 16])
@pytest.mark.parametrize('first', [0.25, 0.6])
def test_first_tries_cost_little(means, rows, first):
  assert mean_share(means, rows, first, 24) > 0.935
  assert mean_share(means, rows, first, 100) > 0.955


def test_prices_and_tries_of_one_round_are_why(means):
  """Negative control: whole launches lose more."""
  short = mean_share(means, 16, 0.25, 24)
  assert mean_share(means, 16, 0.25, 24, is_whole=True) < short - 0.015


def test_what_cannot_win_is_not_tried_where_acceptance_is_known(means):
  for seed in SEEDS:
    _, turns = share(means, seed, 16, 0.25, 24, before=(1, 4))
    full = [turn for turn in turns if turn.form == guard.FULL]
    assert sum(turn.num_rounds for turn in full) <= 1


def test_new_rows_begin_with_the_best_guess():
  """Not with what runs at the nearest number of rows."""
  subject = guard.Guard(guard_world.NUM_DRAFTS, forms=FORMS)
  for _ in range(60):  # Every second first draft is right, no other.
    turn = subject.choose(1, 1, guard_world.PRICES[1])
    accepted = np.array([1, 0])
    seen = labels.of_chain(np.full(2, 3), accepted, 3)
    subject.record(turn, 1, 0.02, 2, 0.02, seen)
  assert subject.running(1) != guard.PLAIN
  prices = guard_world.PRICES[16]
  dear = prices._replace(verify_s=(0.057, 0.2, 0.4, 0.6))
  assert subject.choose(16, 4, dear).form == guard.PLAIN
  cheap = guard_world.PRICES[4]._replace(verify_s=(0.036, 0.0361, 0.0362))
  assert subject.choose(4, 4, cheap).form != guard.PLAIN


def test_with_nothing_known_the_policy_runs_a_round_at_a_time():
  subject = guard.Guard(guard_world.NUM_DRAFTS, forms=FORMS)
  turn = subject.choose(16, guard_world.NUM_ROUNDS, guard_world.PRICES[16])
  assert turn == (guard.ADAPTIVE, 1)


@pytest.mark.parametrize('rows', [1, 4, 16])
def test_acceptance_that_rises_is_found_soon(rows):
  rng = np.random.default_rng(rows)
  subject = guard.Guard(guard_world.NUM_DRAFTS, forms=FORMS)
  machine = guard_world.Machine(rows, 0.02, rng)
  guard_world.run(subject, machine, machine.means(20), 200)
  assert subject.running(rows) == guard.PLAIN
  machine.first = 0.85
  means = machine.means(100)
  rates = {form: tokens / s for form, (s, tokens) in means.items()}
  assert rates[guard.ADAPTIVE] > 1.1 * rates[guard.PLAIN]
  num_launches = 0
  while subject.running(rows) == guard.PLAIN and num_launches < 120:
    guard_world.run(subject, machine, means, 1)
    num_launches += 1
  assert num_launches < 120
