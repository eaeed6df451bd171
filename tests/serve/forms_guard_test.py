# SPDX-License-Identifier: MIT
"""Forms of launches: prices for the guard, and whose launches teach it."""

import numpy as np
import pytest

from jspec.depth import cost_table, guard
from jspec.serve import device, forms, launch, programs

SIZES = {programs.PLAIN: (4,), programs.FUSED: (4, 10, 16)}
NUM_DRAFTS = 3


class Fake(device.Device):
  """Programs for four rows, and nothing that runs them."""

  def __init__(self):
    pass

  def bucket(self, num_rows):
    return 4

  def sizes(self, form, bucket):
    return SIZES[form]


def make():
  table = cost_table.CostTable()
  for nodes, seconds in ((4, 0.03), (10, 0.05), (16, 0.07)):
    table.add(4, nodes, 256, seconds)
  table.add_draft(4, 256, 0.01)
  return forms.Forms(Fake(), table, NUM_DRAFTS, num_rounds=4), table


def used(by_budget, verified, accepted):
  path = np.arange(1, NUM_DRAFTS + 1) * (
    np.arange(NUM_DRAFTS) < np.array(accepted)[:, None]
  )
  return device.Used(
    num_rounds=sum(by_budget),
    by_depth=np.zeros(NUM_DRAFTS + 1, int),
    by_budget=np.array(by_budget),
    num_verified=np.array(verified),
    path=path,
    scores=np.zeros(path.shape),
    confidence=np.zeros(path.shape),
    parents=np.zeros(path.shape, int),
  )


def test_guard_is_told_what_rounds_cost():
  subject, _ = make()
  prices = subject._prices(3, 256)
  assert prices.nodes == SIZES[programs.FUSED]
  assert prices.plain_s == pytest.approx(0.03)
  assert prices.draft_s == pytest.approx(0.01)
  np.testing.assert_allclose(prices.verify_s, [0.03, 0.05, 0.07])
  choice = subject.choose(3, 256.0, 4)
  price = subject._price(choice, np.array([1, 0, 2]))
  assert price == pytest.approx(3 * 0.01 + 0.03 + 2 * 0.07)


def test_guard_chooses_the_rounds_of_a_launch():
  subject, _ = make()
  choice = subject.choose(4, 256.0, 4)
  assert (choice.form, choice.num_rounds) == (guard.ADAPTIVE, 1)
  assert choice.budget == launch.BY_POLICY and choice.chooser is subject._guard


def test_pinned_launches_teach_the_table_but_not_the_guard():
  subject, table = make()
  for is_pinned in (True, False):
    subject.pinned = guard.FULL if is_pinned else None
    choice = subject.choose(4, 256.0, 4)
    assert (choice.chooser is None) == is_pinned
    if is_pinned:
      assert (choice.form, choice.num_rounds, choice.budget) == ('full', 4, 2)
    before = table.entries()
    for _ in range(9):
      subject.record(choice, 0.6, 20, used([0, 0, 4], [3] * 4, [1] * 4))
    seen = subject._guard._acceptance.num_seen
    assert (subject._guard.total_seconds == 0) == is_pinned
    assert (seen.sum() == 0) == is_pinned
    if is_pinned:
      assert table.entries() != before
  np.testing.assert_array_equal(seen, [36, 36, 0])


def test_plain_launches_show_no_draft():
  subject, _ = make()
  seen = subject._seen(used([4], [0] * 4, [0] * 4))
  assert not seen.is_observed.any()


def test_launch_of_a_guard_that_was_replaced_teaches_nobody():
  """The drafter broke while the launch was on its way."""
  subject, _ = make()
  choice = subject.choose(4, 256.0, 4)
  subject.switch_off()
  subject.record(choice, 0.1, 4, used([1, 0, 0], [0] * 4, [0] * 4))
  assert subject._guard.total_seconds == 0
  assert subject.choose(4, 256.0, 4).form == guard.PLAIN


def test_rounds_with_the_host_s_part_teach_the_guard_but_not_the_table():
  subject, table = make()
  choice = subject.choose(4, 256.0, 4)
  before = table.entries(), float(choice.costs.draft_s)
  subject.record(
    choice, 0.5, 4, used([1, 0, 0], [0] * 4, [0] * 4), is_split=True
  )
  after = subject.choose(4, 256.0, 4)
  assert before == (table.entries(), float(after.costs.draft_s))
  assert subject._guard.total_seconds == 0.5
