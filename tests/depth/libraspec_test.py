# SPDX-License-Identifier: MIT
"""LibraSpec: the worked examples, the double sum, the exact variant."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.depth import libraspec, libraspec_calibrated
from tests.depth import cases

TABLE = cases.even_costs(200)


def reaches(q, alpha):
  """e_i by the double sum of the paper, in float64."""
  d = len(q)
  return [
    math.floor(alpha * sum(np.prod(q[i : j + 1]) for j in range(i, d)) + i + 1)
    for i in range(d)
  ]


@pytest.mark.parametrize(
  'q, expected, depth',
  [
    ([0.9, 0.8, 0.3], [4, 4, 3], 3),
    ([0.9, 0.8, 0.3, 0.9, 0.9, 0.9], [5, 5, 5, 8, 8, 7], 5),
  ],
)
def test_worked_examples(q, expected, depth):
  assert reaches(q, 2.0) == expected
  who = cases.full_load(1, 20)
  policy = libraspec.LibraSpec(alpha=2.0)
  scores = cases.scores_of([q])
  assert int(cases.plan(policy, scores, who, TABLE)[0]) == depth
  assert int(cases.jitted(policy.extension)(scores, who)[0]) == 0


def test_sure_drafts_are_extended_by_two_until_the_cap():
  policy = libraspec.LibraSpec(alpha=2.0, max_depth=15)
  depth, asked = 10, []
  while True:
    scores = jnp.ones((1, depth))
    more = int(
      cases.jitted(policy.extension)(scores, cases.full_load(1, 99))[0]
    )
    if not more:
      break
    asked.append(more)
    depth += more
  assert asked == [2, 2, 1] and depth == 15
  assert (
    int(
      cases.jitted(policy.extension)(jnp.ones((1, 10)), cases.full_load(1, 11))[
        0
      ]
    )
    == 1
  )


@pytest.mark.parametrize('last, more', [(0.45, 0), (0.46, 1)])
def test_last_draft_decides_whether_extension_is_possible(last, more):
  scores = cases.scores_of([[0.99, 0.99, last]])
  got = cases.jitted(libraspec.LibraSpec(alpha=2.2).extension)(
    scores, cases.full_load(1, 9)
  )
  assert int(got[0]) == more


def test_minimum_equals_that_of_the_double_sum():
  rng = np.random.default_rng(0)
  find = jax.jit(libraspec.farthest, static_argnums=2)
  alphas = (1.0, 1.7, 2.2, 3.9)
  for _ in range(100):
    q = rng.beta(3, 1, (2, 7))
    alpha = float(rng.choice(alphas))
    num_drafts = rng.integers(1, 8, 2)
    got = find(cases.scores_of(q), jnp.asarray(num_drafts), alpha)
    expected = [min(reaches(q[b, :n], alpha)) for b, n in enumerate(num_drafts)]
    np.testing.assert_array_equal(got, expected)


def test_a_weak_first_draft_is_kept_and_what_follows_cut():
  scores = cases.scores_of([[0.1, 0.9, 0.9, 0.9]])
  who = cases.full_load(1, 4)
  assert int(cases.plan(libraspec.LibraSpec(), scores, who, TABLE)[0]) == 1


def test_depth_is_capped_and_the_batch_fits_the_budget():
  scores = jnp.ones((2, 6))
  policy = libraspec.LibraSpec(max_depth=4)
  got = cases.plan(policy, scores, cases.full_load(2, 6), TABLE)
  np.testing.assert_array_equal(got, [4, 4])
  got = cases.plan(policy, scores, cases.full_load(2, 6), cases.even_costs(7))
  np.testing.assert_array_equal(got, [3, 2])


def test_broken_row_asks_for_nothing_more():
  scores = jnp.array([[np.nan, 1.0], [1.0, 1.0]])
  got = cases.jitted(libraspec.LibraSpec().extension)(
    scores, cases.full_load(2, 9)
  )
  np.testing.assert_array_equal(got, [0, 2])


@pytest.mark.parametrize('options', [{'alpha': 0.0}, {'max_depth': 0}])
def test_options_are_checked(options):
  with pytest.raises(errors.UserError, match=next(iter(options))):
    libraspec.LibraSpec(**options)


@pytest.mark.few(1)
@pytest.mark.parametrize('kind', ['even', 'stairs'])
def test_calibrated_is_the_exact_optimum_of_a_row(kind):
  rng = np.random.default_rng(1)
  plan = cases.jitted(libraspec_calibrated.LibraSpecCalibrated().plan)
  fixed = cases.jitted(libraspec.LibraSpec().plan)
  depths, differs = set(), 0
  for _ in range(150):
    q = rng.beta(rng.uniform(0.5, 9), rng.uniform(0.3, 3), (1, 12))
    scores = cases.scores_of(q)
    table = cases.even_costs(
      13, rng.uniform(0.5, 6), rng.uniform(0.05, 1.5), draft_s=0.0
    )
    if kind == 'stairs':
      table = cases.random_staircase(rng, 13)
    who = cases.full_load(1, 12)
    got = np.asarray(plan(scores, who, table))
    best = cases.best_rate(scores, who, table)
    assert cases.rate(got, scores, who, table) == pytest.approx(best, rel=1e-5)
    paper = np.asarray(fixed(scores, who, table))
    differs += cases.rate(paper, scores, who, table) < 0.98 * best
    depths.add(int(got[0]))
  assert len(depths) > 4
  assert differs > 15  # One constant does not fit all tables.


def test_farthest_ends_that_pay_meet_at_the_optimum():
  """The definition of e_i by trying all ends, on a staircase."""
  rng = np.random.default_rng(2)
  for _ in range(100):
    gained = 1 + np.append(0, np.cumsum(np.cumprod(rng.beta(3, 1, 8))))
    seconds = 0.5 + np.cumsum(rng.choice([0.0, 0.1, 0.8], 9))
    rate = gained / seconds
    ends = [
      max([d for d in range(i, 9) if rate[d] > rate[i - 1]], default=i - 1)
      for i in range(1, 9)
    ]
    assert min(ends) == np.argmax(rate)


def test_calibrated_plans_as_if_all_rows_went_equally_deep():
  scores = cases.scores_of(np.full((3, 6), 0.8))
  one_row = cases.even_costs(21, base_s=4.0, node_s=3 * 0.2)
  three_rows = cases.even_costs(21, base_s=4.0, node_s=0.2)
  policy = libraspec_calibrated.LibraSpecCalibrated()
  one = cases.plan(policy, scores[:1], cases.full_load(1, 6), one_row)
  three = cases.plan(policy, scores, cases.full_load(3, 6), three_rows)
  np.testing.assert_array_equal(three, np.repeat(np.asarray(one), 3))
  assert 0 < int(one[0]) < 6
