# SPDX-License-Identifier: MIT
"""Bounds on what a form reaches, against policies that do their best."""

import numpy as np
import pytest

from jspec.depth import outlook

NUM_DRAFTS = 3


def random_prices(rng, rows):
  nodes = np.unique(rng.integers(rows + 1, rows * (NUM_DRAFTS + 1), 3))
  nodes = [rows, *nodes.tolist(), rows * (NUM_DRAFTS + 1)]
  verify_s = np.cumsum(rng.uniform(0.1, 2.0, len(nodes)))
  return outlook.Prices(
    plain_s=float(verify_s[0]),
    draft_s=float(rng.uniform(0, 0.5)),
    nodes=nodes,
    verify_s=verify_s.tolist(),
  )


def best_rate(prices, rows, totals, is_blind):
  """Of all rules that know how many drafts of a round will be right.

  Or of one number of drafts for all rounds, if blind. By the ratio's own test:
  a rate is reached if some rule gains at least rate x seconds.
  """
  drafts = np.array(prices.nodes) - rows
  seconds = prices.draft_s + np.array(prices.verify_s)
  gained = rows + np.minimum(drafts, totals[:, None])
  if is_blind:
    return np.max(gained.mean(axis=0) / seconds) / rows
  low, high = 0.0, 100.0
  for _ in range(60):
    rate = (low + high) / 2
    if np.max(gained - rate * rows * seconds, axis=1).mean() >= 0:
      low = rate
    else:
      high = rate
  return low


def bounds(rows, prices, survival, upper):
  drafts = [n - rows for n in prices.nodes]
  seconds = [prices.draft_s + s for s in prices.verify_s]
  return outlook._oracle(rows, rows * sum(upper), drafts, seconds) / rows


def test_no_policy_passes_the_oracle_on_the_hull():
  rng = np.random.default_rng(0)
  tightest = 0.0
  for _ in range(60):
    rows = int(rng.integers(1, 6))
    prices = random_prices(rng, rows)
    p = rng.uniform(0.05, 0.95, NUM_DRAFTS)
    luck = rng.random((200, rows, NUM_DRAFTS)) < p
    accepted = np.cumprod(luck, axis=2)
    survival = accepted.mean(axis=(0, 1))
    most = bounds(rows, prices, survival, survival)
    best = best_rate(prices, rows, accepted.sum(axis=(1, 2)), False)
    assert best <= most * (1 + 1e-9)
    tightest = max(tightest, best / most)
  assert tightest > 0.95


def test_oracle_at_the_staircase_would_be_too_low():
  """Negative control: without the hull a policy passes it."""
  prices = outlook.Prices(1.0, 0.0, (1, 2, 3, 4), (1.0, 3.0, 3.0, 3.0))
  totals = np.array([0, 0, 3])  # One draft a round on average.
  best = best_rate(prices, 1, totals, False)
  naive = max((1 + 0) / 1.0, (1 + 1) / 3.0)
  assert naive < best <= bounds(1, prices, None, [1.0])


def test_guesses_of_fixed_forms_are_plain_division():
  prices = outlook.Prices(2.0, 1.0, (4, 16), (2.0, 5.0))
  assert outlook.plain(prices).rate == 0.5
  guess = outlook.full(prices, [0.5, 0.25, 0.0], [0.6, 0.35, 0.05])
  assert guess.rate == pytest.approx(1.75 / 6)
  assert guess.round_s == 6.0
  assert guess.error > 0.25 / 6


def test_guess_of_the_policy_is_between_blind_and_knowing():
  rng = np.random.default_rng(1)
  for _ in range(40):
    rows = int(rng.integers(1, 6))
    prices = random_prices(rng, rows)
    survival = np.sort(rng.uniform(0, 1, NUM_DRAFTS))[::-1]
    known = survival.tolist()
    guess = outlook.adaptive(rows, prices, known, known)
    depths = range(NUM_DRAFTS + 1)
    seconds = np.array(prices.verify_s) + prices.draft_s
    blind = max(
      (1 + survival[:k].sum())
      / seconds[np.searchsorted(prices.nodes, rows * (1 + k))]
      for k in depths
    )
    knowing = bounds(rows, prices, survival, survival)
    assert blind <= knowing * (1 + 1e-9)
    assert guess.rate <= knowing * (1 + 1e-9)
    assert guess.rate >= np.sqrt(blind * knowing) * (1 - 1e-9)


def test_fewer_rows_than_the_program_holds_have_no_draft_in_the_first_budget():
  prices = outlook.Prices(1.0, 0.1, (4, 10, 16), (1.0, 2.0, 3.0))
  none = outlook.adaptive(3, prices, [0.0] * 3, [0.0] * 3)
  assert none.rate == pytest.approx(1 / 1.1)
