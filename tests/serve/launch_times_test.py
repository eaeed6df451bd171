# SPDX-License-Identifier: MIT
"""Launches are timed where the host saw both ends, and nowhere else."""

import numpy as np
import pytest

from jspec.serve import launch_times


def test_a_launch_begins_when_the_one_before_ends_or_when_it_is_sent():
  times = launch_times.LaunchTimes()
  assert times.came_back(1.0, 3.0, saw_end=True) == 2.0
  assert times.came_back(1.5, 4.0, saw_end=True) == 1.0
  assert times.came_back(6.0, 6.5, saw_end=True) == 0.5


def test_an_end_that_was_not_seen_leaves_the_next_without_a_begin():
  times = launch_times.LaunchTimes()
  assert times.came_back(1.0, 3.0, saw_end=False) is None
  assert times.came_back(2.0, 4.0, saw_end=True) is None
  assert times.came_back(3.5, 5.0, saw_end=True) == 1.0
  # Unless that was sent when the device rested.
  assert times.came_back(4.0, 6.0, saw_end=False) is None
  assert times.came_back(6.5, 7.0, saw_end=True) == 0.5


def test_a_launch_nobody_waited_for_leaves_the_next_without_a_begin():
  times = launch_times.LaunchTimes()
  times.missed()
  assert times.came_back(9.0, 10.0, saw_end=True) is None
  assert times.came_back(9.5, 11.0, saw_end=True) == 1.0


@pytest.mark.parametrize('seed', range(5))
def test_what_is_told_is_what_the_device_took(seed):
  """A device and a host, one launch behind, that is slow now and then."""
  rng = np.random.default_rng(seed)
  times = launch_times.LaunchTimes()
  now = free = 0.0
  on_way, told, wrong = [], 0, 0
  for _ in range(400):
    now += rng.exponential(0.3)
    sent_s, took = now, float(rng.exponential(1.0))
    free = max(free, sent_s) + took
    on_way.append((sent_s, took, free, bool(rng.random() < 0.1)))
    if len(on_way) < 2 and rng.random() < 0.9:
      continue
    sent_s, took, end_s, only_prompts = on_way.pop(0)
    if only_prompts:
      times.missed()
      continue
    saw_end = now < end_s
    now = max(now, end_s)
    found = times.came_back(sent_s, now, saw_end=saw_end)
    if found is not None:
      told += 1
      wrong += abs(found - took) > 1e-9
  assert told > 100 and wrong == 0
