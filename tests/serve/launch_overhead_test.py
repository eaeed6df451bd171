# SPDX-License-Identifier: MIT
"""Launches of one round and of several are compared by their rounds."""

import numpy as np
import pytest

from jspec.serve import launch_overhead

OVERHEAD, ROUND = 0.004, 0.036


def learned(num_launches=9, noise=0.0, seed=0):
  rng = np.random.default_rng(seed)
  of = launch_overhead.LaunchOverhead(4)
  for _ in range(num_launches):
    for kind, a_round in (('few', ROUND), ('many', 10 * ROUND)):
      for num_rounds in (1, 2, 4):
        seconds = OVERHEAD + num_rounds * a_round
        seconds *= 1 + noise * rng.standard_normal()
        of.record(kind, num_rounds, float(seconds))
  return of


def test_short_launches_are_made_whole_ones():
  of = learned()
  assert of.seconds == pytest.approx(OVERHEAD)
  for num_rounds in (1, 2, 4):
    seconds = of.as_whole(num_rounds, OVERHEAD + num_rounds * ROUND)
    assert seconds / num_rounds == pytest.approx(ROUND + OVERHEAD / 4)


def test_as_they_are_short_ones_look_slower():
  """Negative control: nothing is known, so nothing is made up for."""
  of = learned(num_launches=2)
  assert of.seconds == 0.0
  one, four = (of.as_whole(n, OVERHEAD + n * ROUND) / n for n in (1, 4))
  assert one > 1.05 * four


def test_it_is_read_where_rounds_are_short():
  """Of long rounds the noise alone is larger."""
  found = [learned(noise=0.03, seed=seed).seconds for seed in range(20)]
  assert np.mean(np.abs(np.array(found) - OVERHEAD)) < OVERHEAD / 2


def test_no_time_is_taken_away_altogether():
  of = launch_overhead.LaunchOverhead(4)
  for _ in range(9):
    of.record('a', 1, 1.0)
    of.record('a', 4, 1.0)  # Rounds are free, it seems.
  assert of.seconds == pytest.approx(1.0)
  assert of.as_whole(1, 0.5) == 0.25
  assert of.as_whole(4, 0.5) == 0.5
  negative = launch_overhead.LaunchOverhead(4)
  for _ in range(9):
    negative.record('a', 1, 1.0)
    negative.record('a', 4, 9.0)  # Noise: more than four times one.
  assert negative.seconds == 0.0


def test_launches_of_one_round_need_no_comparison():
  of = launch_overhead.LaunchOverhead(1)
  for _ in range(9):
    of.record('a', 1, 1.0)
  assert of.as_whole(1, 1.0) == 1.0
