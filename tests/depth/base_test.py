# SPDX-License-Identifier: MIT
"""What every policy must do, and what `clean` does for them."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.depth import api, base
from tests.depth import cases

SPECS = (
  'static',
  'static,depth=2',
  'libraspec',
  'libraspec_calibrated',
  'dinkelbach',
  'dcut',
  'dcut,floor=1',
  'dcut,ratios=0.25/0.5/0.75/1',
  'dcut,mode=stale',
  'first_drop',
  'caddtree',
  'caddtree,scope=batch',
)
every = pytest.mark.parametrize('spec', SPECS)


def test_clean_makes_scores_that_can_be_ranked():
  scores = jnp.array(
    [[0.9, 0.5, 0.7], [0.9, 0.8, 0.7], [1.5, 0.4, -1.0], [0.9, np.nan, 0.1]]
  )
  got = base.clean(scores, cases.load([1, 0, 1, 1], [3, 3, 1, 3]))
  expected = [[0.9, 0.5, 0.5], [0, 0, 0], [1, 0, 0], [0, 0, 0]]
  np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_missing_counts_rows_that_decode():
  scores = jnp.array([[0.9, np.nan], [np.nan, 0.1], [0.5, 0.4], [np.inf, 0.0]])
  got = base.is_missing(scores, cases.load([1, 0, 1, 1], [2, 2, 2, 2]))
  np.testing.assert_array_equal(got, [True, False, False, True])


@pytest.mark.few(2)
@every
def test_plan_is_the_same_under_jit_and_keeps_to_its_bounds(spec):
  policy = api.make(spec)
  rng = np.random.default_rng(0)
  plan = cases.jitted(policy.plan)
  most_kept = 0
  for i in range(25):
    scores, who = cases.random_round(rng, rows=4, depth=5)
    table = cases.random_staircase(rng, int(rng.integers(5, 26)))
    got = np.asarray(plan(scores, who, table))
    if i == 0:  # Eagerly every operation compiles once more.
      np.testing.assert_array_equal(got, policy.plan(scores, who, table))
    active, limits = np.asarray(who.is_active), np.asarray(who.limits)
    assert np.all(got >= 0)
    assert np.all(got <= np.minimum(limits, 5))
    assert np.all(got[~active] == 0)
    assert active.sum() + got.sum() <= int(table.nodes[-1])
    most_kept = max(most_kept, got.sum())
  assert most_kept > 4  # All this holds of a policy that keeps nothing.


@pytest.mark.few(4)
@every
def test_rows_may_be_permuted(spec):
  policy = api.make(spec)
  plan = cases.jitted(policy.plan)
  rng = np.random.default_rng(1)
  table = cases.even_costs(24)  # Wide enough: no row is cut for the others.
  for _ in range(10):
    scores, who = cases.random_round(rng, rows=4, depth=5)
    order = rng.permutation(4)
    other = cases.load(who.is_active[order], who.limits[order])
    np.testing.assert_array_equal(
      plan(scores[order], other, table), plan(scores, who, table)[order]
    )


@every
def test_nan_means_no_drafts_there_and_the_same_plan_elsewhere(spec):
  policy = api.make(spec)
  rng = np.random.default_rng(2)
  table = cases.even_costs(40, node_s=0.01)
  for place in (0, 3):
    scores, _ = cases.random_round(rng, rows=3, depth=4)
    broken = np.asarray(scores).copy()
    broken[1, place] = np.nan
    got = cases.plan(policy, jnp.asarray(broken), cases.full_load(3, 4), table)
    without = cases.plan(
      policy, scores, cases.load([1, 1, 1], [4, 0, 4]), table
    )
    np.testing.assert_array_equal(got, without)
    assert got[1] == 0 and got[0] > 0


@every
def test_nobody_decodes(spec):
  scores = jnp.full((2, 3), 0.9)
  got = cases.plan(
    api.make(spec), scores, cases.load([0, 0], [3, 3]), cases.even_costs(8)
  )
  np.testing.assert_array_equal(got, [0, 0])


@every
def test_more_rows_than_the_largest_budget_leave_no_room_for_drafts(spec):
  got = cases.plan(
    api.make(spec),
    jnp.full((4, 3), 0.9),
    cases.full_load(4, 3),
    cases.even_costs(3),
  )
  np.testing.assert_array_equal(got, [0, 0, 0, 0])


@every
def test_free_drafts_are_all_kept(spec):
  if 'libraspec' == spec or 'depth=' in spec:
    return  # They do not ask what it costs.
  rng = np.random.default_rng(3)
  scores = cases.scores_of(rng.uniform(0.2, 1, (3, 4)))
  table = cases.even_costs(20, node_s=0.0)
  got = cases.plan(api.make(spec), scores, cases.full_load(3, 4), table)
  np.testing.assert_array_equal(got, [4, 4, 4])


@every
def test_costs_in_proportion_to_nodes_leave_only_sure_drafts(spec):
  if spec.startswith(('static', 'libraspec')) and 'calib' not in spec:
    return  # They do not ask what it costs.
  table = cases.even_costs(20, base_s=1e-6, node_s=1.0, draft_s=0.0)
  plan = cases.jitted(api.make(spec).plan)
  low = np.asarray(plan(jnp.full((3, 4), 0.5), cases.full_load(3, 4), table))
  least = {'dcut,floor=1': 3, 'dcut,ratios=0.25/0.5/0.75/1': 3}.get(spec, 0)
  assert low.sum() == least
  sure = jnp.ones((3, 4))
  shallow = cases.even_costs(20, base_s=0.1, node_s=1.0, draft_s=0.0)
  high = plan(sure, cases.full_load(3, 4), shallow)
  np.testing.assert_array_equal(high, [4, 4, 4])
