# SPDX-License-Identifier: MIT
"""What live rounds teach the cost table: the whole of each round, no less."""

import numpy as np
import pytest

from jspec.depth import cost_table
from jspec.serve import device as device_lib
from jspec.serve import forms, programs

SIZES = (4, 9, 16)


class Device(device_lib.Device):
  """Says what is compiled and runs nothing."""

  def __init__(self):
    pass

  def bucket(self, num_rows):
    return 4

  def sizes(self, form, bucket):
    return SIZES if form == programs.FUSED else (4,)


def make(draft_s):
  """Plain rounds were measured at 10 ms, whole ones at 20 ms and drafts."""
  table = cost_table.CostTable()
  table.add(4, 4, 256, 0.010)
  table.add(4, 16, 256, 0.020)
  table.add_draft(4, 256, draft_s)
  return forms.Forms(Device(), table, 3, num_rounds=2), table


def record(of, form, budget, seconds, num_times=64):
  """Launches of two rounds each that took `seconds` a round."""
  for _ in range(num_times):
    of.pinned = form
    choice = of.choose(4, 256.0, 2)
    rounds = [0] * (1 if form == 'plain' else len(SIZES))
    rounds[budget] = 2
    of.record(choice, 2 * seconds, 8, used(rounds))


def used(rounds):
  """Rounds at each budget, of drafts that nobody looked at."""
  none = np.zeros((4, 3), int)
  return device_lib.Used(
    num_rounds=sum(rounds),
    by_depth=np.zeros(4, int),
    by_budget=np.array(rounds),
    scores=none.astype(float),
    confidence=none.astype(float),
    parents=none,
    num_verified=none[:, 0],
    path=none,
  )


def costs(table):
  found = table.costs(4, 256, SIZES)
  return np.asarray(found.verify_s), float(found.draft_s)


@pytest.mark.parametrize('measured', [0.0, 0.005, 0.050])
def test_proposing_is_learned_whatever_was_measured(measured):
  """Also where the measurement was cut to nothing, or was all noise."""
  of, table = make(measured)
  record(of, 'adaptive', 0, 0.015)
  record(of, 'full', 2, 0.030)
  verify_s, draft_s = costs(table)
  assert draft_s == pytest.approx(0.005, rel=1e-3)
  assert verify_s[0] == pytest.approx(0.010, rel=1e-3)
  assert verify_s[2] + draft_s == pytest.approx(0.030, rel=1e-3)


@pytest.mark.parametrize('measured', [0.0, 0.005])
def test_whole_rounds_cost_what_they_took_if_nothing_else_is_known(measured):
  of, table = make(measured)
  record(of, 'full', 2, 0.030)
  verify_s, draft_s = costs(table)
  assert draft_s == pytest.approx(measured, abs=1e-6)
  assert verify_s[2] + draft_s == pytest.approx(0.030, rel=1e-3)


def test_anchors_of_rounds_that_draft_do_not_cost_more_than_plain_ones():
  of, table = make(0.0)
  record(of, 'adaptive', 0, 0.015)
  assert costs(table)[0][0] == pytest.approx(0.010, rel=1e-3)
  record(of, 'plain', 0, 0.012)
  assert costs(table)[0][0] == pytest.approx(0.012, rel=1e-3)


def test_rounds_shorter_than_proposing_are_not_thrown_away():
  """Verifying costs no less than anchors alone, and no time is negative."""
  of, table = make(0.050)
  record(of, 'full', 2, 0.030)
  verify_s, draft_s = costs(table)
  assert verify_s[2] == pytest.approx(0.010, rel=1e-2)
  assert draft_s == pytest.approx(0.050)
  record(of, 'adaptive', 0, 0.008)  # Faster than plain rounds: noise.
  assert costs(table)[1] == pytest.approx(0.0, abs=1e-6)


def mixed(of, rounds, seconds, num_times=64):
  """Launches of some rounds at each budget."""
  of.pinned = 'adaptive'
  for _ in range(num_times):
    choice = of.choose(4, 256.0, sum(rounds))
    of.record(choice, seconds, 8, used(rounds))


def test_mixed_launches_teach_the_budgets_behind_the_anchors():
  """What anchors take is known from launches of their own."""
  of, table = make(0.005)
  before, drafting = costs(table)
  mixed(of, [1, 1, 0], 0.015 + 0.005 + 0.0185)
  verify_s, draft_s = costs(table)
  assert draft_s == pytest.approx(drafting)
  assert verify_s[0] == pytest.approx(before[0])
  assert before[1] < 0.018 and verify_s[1] == pytest.approx(0.0185, rel=1e-3)


def test_budgets_that_ran_together_share_what_is_left():
  of, table = make(0.0)
  before, _ = costs(table)
  mixed(of, [0, 1, 1], float(1.1 * (before[1] + before[2])))
  np.testing.assert_allclose(costs(table)[0][1:], 1.1 * before[1:], rtol=1e-3)


def test_what_hardly_ran_is_not_judged():
  of, table = make(0.005)
  before = costs(table)
  mixed(of, [7, 1, 0], 9.0)
  mixed(of, [3, 1, 0], 0.001)  # Less than the anchors alone.
  np.testing.assert_array_equal(costs(table)[0], before[0])
  assert costs(table)[1] == before[1]
