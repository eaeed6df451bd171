# SPDX-License-Identifier: MIT
"""Labels that a cut draft does not spoil."""

import numpy as np
import pytest

from jspec.depth import dcut, labels
from tests.depth import cases


def test_a_position_is_observed_if_it_was_verified_and_reached():
  got = labels.of_chain(np.array([4, 2, 0, 3]), np.array([2, 2, 0, 0]), 5)
  np.testing.assert_array_equal(
    got.is_observed,
    [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [0] * 5, [1, 0, 0, 0, 0]],
  )
  np.testing.assert_array_equal(
    got.is_accepted, [[1, 1, 0, 0, 0], [1, 1, 0, 0, 0], [0] * 5, [0] * 5]
  )


def rounds(rng, accept, num_verified):
  """Accepted drafts of chains cut at `num_verified`."""
  survives = np.cumprod(
    rng.random((len(num_verified), len(accept))) < accept, axis=1
  )
  return np.minimum(survives.sum(axis=1), num_verified)


def test_rates_are_right_although_drafts_are_cut_and_means_are_not():
  rng = np.random.default_rng(0)
  accept = np.array([0.9, 0.8, 0.7, 0.6])
  rates = labels.Rates(4, half_life=1e9)
  cut = rng.integers(0, 5, 20000)
  accepted = rounds(rng, accept, cut)
  rates.update(labels.of_chain(cut, accepted, 4))
  np.testing.assert_allclose(rates.conditional(), accept, atol=0.02)
  np.testing.assert_allclose(rates.survival(), np.cumprod(accept), atol=0.02)
  # What a plain average says of the first draft.
  assert np.mean(accepted >= 1) < 0.75


def settled_depth(truth, num_rounds=300):
  """A drafter that is right exactly `truth` times, planned by its rates."""
  rates = labels.Rates(8, half_life=32.0)
  table = cases.even_costs(9, base_s=1.0, node_s=0.05, draft_s=0.0)
  depth, depths = 2, []
  for i in range(num_rounds):
    rates.update(
      labels.of_chain(np.array([depth]), np.array([min(depth, truth)]), 8)
    )
    if i % 5 == 4:
      scores = np.asarray(rates.survival(), np.float32)[None]
      depth = int(
        cases.plan(
          dcut.DCut(), cases.jnp.asarray(scores), cases.full_load(1, 8), table
        )[0]
      )
    depths.append(depth)
  return depths[-40:]


@pytest.mark.parametrize(
  'truth, expected', [(8, {8}), (3, {3, 4}), (0, {0, 1})]
)
def test_depth_climbs_to_what_the_drafter_can_do(truth, expected):
  assert set(settled_depth(truth)) <= expected


def test_forgetting_follows_a_change():
  rates = labels.Rates(1, half_life=20.0)
  one = np.array([1])
  for accepted in [one] * 200 + [0 * one] * 60:
    rates.update(labels.of_chain(one, accepted, 1))
  assert rates.conditional()[0] < 0.2


def test_depth_never_tried_is_like_the_deepest_that_was():
  rates = labels.Rates(4, half_life=1e9, prior=0.1)
  assert rates.conditional() == pytest.approx([0.1] * 4)
  rates.update(labels.of_chain(np.full(500, 2), np.full(500, 2), 4))
  assert np.all(rates.conditional()[2:] == rates.conditional()[1])
  assert rates.conditional()[3] > 0.95


def test_survival_above_what_was_seen_shrinks_with_observations():
  rng = np.random.default_rng(0)
  truth, above = 0.5, []
  for number in (10, 1000):
    too_low = means_too_low = 0
    for _ in range(100):
      rates = labels.Rates(1, half_life=1e9, prior=truth)
      accepted = (rng.random(number) < truth).astype(int)
      rates.update(labels.of_chain(np.ones(number, int), accepted, 1))
      too_low += rates.survival(2.0)[0] < truth
      means_too_low += rates.survival()[0] < truth
    # Ten observations are below in 5.5 % of all draws, a thousand in 2.3 %.
    assert too_low <= 12 < 30 < means_too_low
    above.append(rates.survival(2.0)[0] - rates.survival()[0])
  assert above[1] < 0.2 * above[0]
  deep = labels.Rates(3)
  deep.update(labels.of_chain(np.full(50, 1), np.full(50, 0), 3))
  upper = deep.survival(1.0)
  assert np.all(np.diff(upper) < 0) and np.all(upper <= 1)
