# SPDX-License-Identifier: MIT
"""The global list: its prefixes are prefixes of rows, and none is better."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.depth import ranking
from tests.depth import cases


def kept(scores, count, floor=0):
  counts, ranked = rank_and_count(
    jnp.asarray(scores, jnp.float32), jnp.int32(count), floor
  )
  return np.asarray(counts), ranked


@functools.partial(jax.jit, static_argnums=2)
def rank_and_count(scores, count, floor):
  ranked = ranking.rank(scores, floor)
  return ranking.counts(ranked, count), ranked


@pytest.mark.parametrize(
  'num_kept, expected', [(0, (0, 0)), (3, (3, 0)), (4, (3, 1)), (6, (3, 3))]
)
def test_published_example(num_kept, expected):
  scores = cases.scores_of([[0.9, 0.9, 0.9], [0.5, 0.9, 0.9]])
  assert tuple(kept(scores, num_kept)[0]) == expected


def test_best_n_drafts_bring_most_tokens_for_every_n():
  rng = np.random.default_rng(0)
  for _ in range(20):
    scores = np.asarray(cases.scores_of(rng.uniform(0, 1, (3, 3))), float)
    for count in range(10):
      plan, ranked = kept(scores, count)
      assert plan.sum() == count
      best = max(
        sum(scores[row, :n].sum() for row, n in enumerate(other))
        for other in itertools.product(range(4), repeat=3)
        if sum(other) == count
      )
      got = sum(scores[row, :n].sum() for row, n in enumerate(plan))
      assert got == pytest.approx(best, abs=1e-6)
      assert float(ranked.gained[count]) == pytest.approx(best, abs=1e-6)


def test_cutting_all_rows_alike_brings_less():
  """Negative control: the property above is not true of any plan."""
  scores = np.asarray(cases.scores_of([[0.9, 0.9], [0.2, 0.5]]), float)
  plan, _ = kept(scores, 2)
  assert tuple(plan) == (2, 0)
  assert scores[:, 0].sum() < scores[0].sum() - 0.5


def test_list_is_closed_under_prefix_even_where_all_scores_are_equal():
  counts, ranked = kept(np.full((3, 4), 0.5), 5)
  # By depth, then by row.
  np.testing.assert_array_equal(ranked.rows, [0, 1, 2] * 4)
  np.testing.assert_array_equal(counts, [2, 2, 1])


def test_floor_goes_first_where_there_is_a_draft():
  scores = [[0.9, 0.8, 0.7], [0.1, 0.05, 0.0], [0.0, 0.0, 0.0]]
  plan, ranked = kept(scores, 3, floor=1)
  assert tuple(plan) == (2, 1, 0)
  assert int(ranked.num_first) == 2
  # The order changes, not what a draft is worth.
  np.testing.assert_allclose(ranked.gained[:4], [0, 0.9, 1.0, 1.8], rtol=1e-6)


def test_fit_keeps_what_rows_chose_or_the_best_of_it():
  scores = jnp.array([[0.9, 0.8, 0.7], [0.6, 0.5, 0.4]])
  wanted = jnp.array([3, 2])

  def fit(most):
    fit = cases.jitted(ranking.fit)
    return tuple(np.asarray(fit(wanted, scores, jnp.int32(2), jnp.int32(most))))

  assert fit(99) == (3, 2)
  assert fit(7) == (3, 2)
  assert fit(6) == (3, 1)
  assert fit(4) == (2, 0)
  assert fit(1) == (0, 0)
