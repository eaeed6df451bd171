# SPDX-License-Identifier: MIT
"""Sums of launches: rates, their errors, strays and contradictions."""

import numpy as np
import pytest

from jspec.depth import guard_record


def launch(rounds=4, seconds=4.0, tokens=8.0, price_s=4.0):
  return guard_record.Launch(rounds, seconds, tokens, price_s)


def test_error_is_that_of_the_rate_whatever_the_rounds_of_a_launch():
  rng = np.random.default_rng(0)
  for lengths in ((1,), (4,), (1, 4)):
    rates, errors = [], []
    for _ in range(300):
      sums = guard_record.Sums(0.3)
      for i in range(40):
        n = lengths[i % len(lengths)]
        tokens = float(rng.normal(2.0, 0.6, n).sum())
        sums.add(launch(n, float(n), tokens, float(n)))
      rates.append(sums.rate)
      errors.append(sums.error())
    assert np.mean(errors) == pytest.approx(np.std(rates), rel=0.15)


def test_one_pause_counts_as_little_and_three_are_believed():
  record = guard_record.Record(0.1)
  for i in range(10):  # They scatter, or the stray would contradict them.
    record.add(launch(seconds=4.0 + 0.8 * (-1) ** i))
  record.add(launch(seconds=400.0))
  most = 10 * 4.0 + guard_record.STRAY * 4.0
  assert record.all.seconds == pytest.approx(most)
  record.add(launch())
  for _ in range(8):
    record.add(launch(seconds=400.0))
  assert record.all.rate < 8 / 200  # Eight tokens take 400 s now.


def test_price_only_says_what_is_usual():
  """A table that is wrong throughout changes no rate."""
  record = guard_record.Record(0.1)
  for _ in range(20):
    record.add(launch(price_s=1.0))
  assert record.all.rate == pytest.approx(2.0, rel=0.15)


def test_contradiction_replaces_what_was_known():
  record = guard_record.Record(0.1)
  rng = np.random.default_rng(0)
  for _ in range(100):
    record.add(launch(tokens=float(rng.normal(8, 0.5))))
  for _ in range(8):
    record.add(launch(tokens=float(rng.normal(4, 0.5))))
  assert record.all.rate == pytest.approx(1.0, rel=0.1)
  assert record.all.launches < 12
  # Negative control: what agrees replaces nothing.
  for _ in range(50):
    record.add(launch(tokens=float(rng.normal(4, 0.5))))
  assert record.all.launches > 50
