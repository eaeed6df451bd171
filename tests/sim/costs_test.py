# SPDX-License-Identifier: MIT
"""Costs lie on the line between measurements, and nowhere else."""

import numpy as np
import pytest

from jspec import errors
from jspec.sim import costs, machines
from tests.sim import small


@pytest.mark.parametrize('name', machines.PUBLISHED)
def test_staircase_is_monotone_and_passes_through_measurements(name):
  machine = machines.published(name)
  shapes = set()
  for bucket in machine.buckets:
    table = machine.staircase(bucket)
    nodes, seconds = np.asarray(table.nodes), np.asarray(table.verify_s)
    assert np.all(np.diff(nodes) > 0) and np.all(np.diff(seconds) >= 0)
    assert (nodes[0], nodes[-1]) == (bucket.nodes[0], bucket.nodes[-1])
    np.testing.assert_allclose(bucket.at(bucket.nodes), bucket.verify_s)
    np.testing.assert_allclose(seconds, bucket.at(nodes.tolist()), rtol=1e-6)
    shapes.add(nodes.shape)
  assert len(shapes) == 1  # One program plans for all buckets.


def test_published_times_are_the_paper_s():
  bucket = machines.qwen3_8b_h20().bucket(32)
  times = bucket.at([128, 256, 384, 512])
  np.testing.assert_allclose(times, [0.0298, 0.0431, 0.0566, 0.0701])
  np.testing.assert_allclose(bucket.at([192]), [(0.0298 + 0.0431) / 2])


@pytest.mark.parametrize('nodes', [127, 513])
def test_beyond_measurements_is_refused(nodes):
  with pytest.raises(errors.UserError, match='128 to 512 nodes'):
    machines.qwen3_8b_h20().bucket(32).at([200, nodes])


def test_more_rows_than_measured_are_refused_and_fewer_are_padded():
  machine = machines.qwen3_8b_h20()
  assert [machine.bucket(n).rows for n in (1, 4, 5, 33, 64)] == [
    4,
    4,
    8,
    64,
    64,
  ]
  for call in (machine.bucket, machine.with_rows):
    with pytest.raises(errors.UserError, match='at most 64'):
      call(65)


def test_budgets_below_what_was_measured_are_refused():
  machine = machines.qwen3_8b_h20(8)  # Measured: 4 and 8 nodes a row.
  bucket = machine.bucket(64)
  assert len(machine.staircase(bucket, (0.5, 0.75, 1.0)).nodes) == 3
  with pytest.raises(errors.UserError, match='no time of 128 nodes'):
    machine.staircase(bucket, (0.25, 0.5, 1.0))


def test_rows_between_two_buckets_lie_between_them():
  machine = machines.qwen3_8b_h20().with_rows(48)
  below, middle, above = (machine.bucket(n) for n in (32, 48, 64))
  assert middle.rows == 48 and middle.nodes == (192, 384, 576, 768)
  for name in ('verify_s', 'draft_s', 'plain_s'):
    low, here, high = (
      np.array(getattr(b, name)) for b in (below, middle, above)
    )
    np.testing.assert_allclose(here, (low + high) / 2)
  assert machine.with_rows(48) is machine
  assert machine.with_rows(3) is machine  # Below the first: padded to it.


def test_rows_between_unequal_measurements_are_refused():
  whole = small.machine()
  other = costs.Bucket(
    rows=16, nodes=(16, 64), verify_s=(1.0, 2.0), draft_s=0.1
  )
  machine = costs.Machine(
    name='uneven', block=4, buckets=(*whole.buckets, other), prefill_s=0.0
  )
  with pytest.raises(errors.UserError, match='no line to 12 rows'):
    machine.with_rows(12)


@pytest.mark.parametrize(
  'nodes, verify_s, match',
  [
    ((4, 8), (1.0, 2.0), 'whole draft of all rows: 16'),
    ((16,), (1.0,), 'two totals'),
    ((4, 16), (2.0, 1.0), 'monotone'),
    ((16, 4), (1.0, 2.0), 'ascend'),
  ],
)
def test_bad_measurements_are_refused(nodes, verify_s, match):
  bucket = costs.Bucket(rows=4, nodes=nodes, verify_s=verify_s, draft_s=0.0)
  with pytest.raises(errors.UserError, match=match):
    costs.Machine(name='bad', block=4, buckets=(bucket,), prefill_s=0.0)


def test_rows_out_of_order_and_unknown_names_are_refused():
  with pytest.raises(errors.UserError, match='do not ascend'):
    small.machine(rows=(8, 4))
  with pytest.raises(errors.UserError, match='hy3_production'):
    machines.published('h100')


def test_hy3_rounds_give_the_published_tokens_per_second():
  for proposing in (0.0, 0.05, 0.1):
    for rows, rates in machines.HY3_TOKENS_PER_S.items():
      bucket = machines.hy3(proposing).bucket(rows)
      whole_s = bucket.verify_s[-1] + bucket.draft_s
      assert rows * 4.79 / whole_s == pytest.approx(rates[-1])
      assert rows / bucket.plain_s == pytest.approx(rates[0])


def test_hy3_production_gives_the_published_rate_of_the_fixed_block():
  bucket = machines.hy3_production().bucket(64)
  whole_s = bucket.verify_s[-1] + bucket.draft_s + bucket.other_s
  assert 64 * 2.50 / whole_s == pytest.approx(848)


def test_what_is_not_published_is_not_known():
  assert machines.qwen3_8b_h20().has_plain
  assert not machines.qwen3p5_35b_a3b_h20().has_plain
