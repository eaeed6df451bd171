# SPDX-License-Identifier: MIT
"""Figures of calibration, and what makes confidence calibrated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.depth import calibration, labels, margin, sts


def logit(p):
  return np.log(p) - np.log1p(-p)


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


def test_ece_of_a_known_bias_and_of_none():
  rng = np.random.default_rng(0)
  truth = rng.uniform(0.1, 0.8, 40000)
  accepted = (rng.random(40000) < truth).astype(float)
  assert calibration.ece(truth, accepted) < 0.015
  assert calibration.ece(truth + 0.15, accepted) == pytest.approx(
    0.15, abs=0.01
  )
  # It orders as well as before: only its values are wrong.
  assert calibration.auroc(truth + 0.15, accepted) == pytest.approx(
    calibration.auroc(truth, accepted)
  )
  assert calibration.brier(truth + 0.15, accepted) > calibration.brier(
    truth, accepted
  )


def test_ece_by_hand():
  confidence = np.array([0.05, 0.05, 0.95, 1.0])
  accepted = np.array([0, 1, 1, 1.0])
  got = calibration.ece(confidence, accepted, num_bins=10)
  assert got == pytest.approx((2 * 0.45 + 2 * 0.025) / 4)
  # Certainty is in the last bin, and nothing has no error.
  assert calibration.ece(np.ones(3), np.ones(3)) == 0
  assert np.isnan(calibration.ece(np.zeros(0), np.zeros(0)))


def test_auroc_is_the_share_of_ordered_pairs():
  rng = np.random.default_rng(1)
  for _ in range(20):
    confidence = rng.integers(0, 5, 30) / 5  # With ties.
    accepted = rng.random(30) < 0.5
    pairs = [
      (a > b) + 0.5 * (a == b)
      for a in confidence[accepted]
      for b in confidence[~accepted]
    ]
    assert calibration.auroc(confidence, accepted) == pytest.approx(
      np.mean(pairs)
    )


def test_positions_count_only_what_was_observed():
  confidence = np.array([[0.9, 0.8], [0.6, 0.1]])
  seen = labels.of_chain(np.array([2, 1]), np.array([1, 0]), 2)
  first, second = calibration.by_position(confidence, *seen)
  assert (first.count, second.count) == (2, 1)
  assert first.auroc == 1.0
  assert second.brier == pytest.approx(0.64)
  assert np.isnan(second.auroc)  # One outcome only.
  nothing = labels.of_chain(np.array([0, 0]), np.array([0, 0]), 2)
  assert all(
    c.count == 0 and np.isnan(c.ece)
    for c in calibration.by_position(confidence, *nothing)
  )


def overconfident(rng, count, depth=4, sharpness=2.0):
  """Raw logits `sharpness` times those of the true probabilities."""
  truth = rng.beta(4, 1.5, (count, depth))
  accepted = np.cumprod(rng.random((count, depth)) < truth, axis=1).sum(1)
  return sharpness * logit(truth), accepted, truth


def product_ece(confidence, num_verified, num_accepted):
  survival = np.cumprod(confidence, axis=1)
  found = []
  for k in range(confidence.shape[1]):
    seen = num_verified > k
    found.append(
      calibration.ece(survival[seen, k], (num_accepted > k)[seen].astype(float))
    )
  return np.array(found)


@pytest.mark.parametrize('is_cut', [False, True])
def test_sts_makes_products_calibrated(is_cut):
  rng = np.random.default_rng(2)
  raw, accepted, _ = overconfident(rng, 6000)
  # A draft is cut by its own confidence, as a policy does.
  cut = 1 + (np.cumprod(sigmoid(raw), axis=1) > 0.4).sum(1).clip(0, 3)
  verified = cut if is_cut else np.full(6000, 4)
  accepted = np.minimum(accepted, verified)
  temperatures = sts.fit(raw[:3000], verified[:3000], accepted[:3000])
  np.testing.assert_allclose(temperatures, 2.0, rtol=0.35)
  rest = slice(3000, None)  # What it was not fitted on.
  before = product_ece(sigmoid(raw[rest]), verified[rest], accepted[rest])
  after = product_ece(
    sigmoid(raw[rest] / temperatures), verified[rest], accepted[rest]
  )
  assert np.all(after < 0.04) and before.mean() > 2 * after.mean()


def test_sts_runs_left_to_right():
  """Fitted to each confidence alone, a correlated product stays biased."""
  rng = np.random.default_rng(3)
  # Hard rounds fail as a whole: given the first is accepted, the rest is easy.
  easy = rng.random(8000) < 0.6
  truth = np.where(easy[:, None], [[0.97, 0.97]], [[0.3, 0.3]])
  accepted = np.cumprod(rng.random((8000, 2)) < truth, axis=1).sum(1)
  shown = np.full((8000, 2), 0.75)
  temperatures = sts.fit(logit(shown), np.full(8000, 2), accepted)
  survival = np.prod(sigmoid(logit(shown) / temperatures), axis=1)
  assert survival.mean() == pytest.approx(np.mean(accepted == 2), abs=0.02)


def test_sts_keeps_what_little_data_cannot_teach():
  rng = np.random.default_rng(4)
  raw, accepted, _ = overconfident(rng, 500)
  got = sts.fit(raw, np.full(500, 2), np.minimum(accepted, 2))
  assert got[2] == got[3] == got[1] != 1.0
  np.testing.assert_array_equal(
    sts.fit(raw[:5], np.full(5, 4), accepted[:5]), 1
  )


def test_sts_applies_on_the_device_and_leaves_the_ends():
  confidence = jnp.array([[0.0, 0.3, 1.0, jnp.nan]])
  got = jax.jit(sts.apply)(confidence, jnp.array([2.0, 2.0, 2.0, 2.0]))
  expected = [0.0, sigmoid(logit(0.3) / 2), 1.0, np.nan]
  np.testing.assert_allclose(got[0], expected, rtol=1e-6)


def test_sts_applies_row_by_row_and_temperature_one_changes_nothing():
  confidence = jnp.array([[0.3, 0.7], [0.1, 1 + 1e-7]])
  got = sts.apply(confidence, jnp.array([[2.0, 1.0], [1.0, 2.0]]))
  assert float(got[0, 0]) == pytest.approx(sigmoid(logit(0.3) / 2))
  # A rounding above 1 is no fault.
  assert got[0, 1] == confidence[0, 1] and got[1, 0] == confidence[1, 0]
  assert got[1, 1] == 1


def test_sts_that_overfits_is_not_taken():
  rng = np.random.default_rng(7)
  is_held_out = np.arange(400) % 2 == 1
  raw, accepted, _ = overconfident(rng, 400)
  verified = np.full(400, 4)
  got, (before, after) = sts.checked(raw, verified, accepted, is_held_out)
  assert after < before
  np.testing.assert_array_equal(got, sts.fit(raw, verified, accepted))
  # Where the rounds held out say the opposite, nothing is scaled.
  raw[is_held_out] = 0.25 * raw[is_held_out]
  got, (before, after) = sts.checked(raw, verified, accepted, is_held_out)
  assert after > before
  np.testing.assert_array_equal(got, 1)
  nobody = np.zeros(400, bool)
  got, scores = sts.checked(raw, verified, accepted, nobody)
  assert np.isnan(scores).all()
  np.testing.assert_array_equal(got, 1)


def test_sts_refuses_what_it_cannot_fit():
  with pytest.raises(errors.UserError, match='finite'):
    sts.fit(np.array([[np.inf]]), np.array([1]), np.array([1]))
  with pytest.raises(errors.UserError, match='N, G'):
    sts.fit(np.zeros((3, 2)), np.array([1]), np.array([1]))


TRUE_WEIGHTS = np.array([-0.5, 0.9, -0.4, 0.1])


def margin_rounds(rng, weights, count=256, depth=5):
  margins = rng.exponential(2.0, (count, depth))
  truth = np.asarray(
    margin.apply(jnp.asarray(weights, jnp.float32), jnp.asarray(margins))
  )
  accepted = np.cumprod(rng.random((count, depth)) < truth, axis=1).sum(1)
  return margins, truth, labels.of_chain(np.full(count, depth), accepted, depth)


def learned(rng, estimator, weights, batches, forget=0.99):
  for _ in range(batches):
    margins, _, seen = margin_rounds(rng, weights)
    estimator = margin.update(estimator, margins, seen, forget)
  return estimator


def error(estimator, weights):
  """Mean difference of probabilities."""
  margins, truth, _ = margin_rounds(np.random.default_rng(99), weights)
  got = margin.apply(
    jnp.asarray(estimator.weights, jnp.float32), jnp.asarray(margins)
  )
  return float(np.mean(np.abs(np.asarray(got) - truth)))


def test_margin_learns_and_follows_a_change():
  rng = np.random.default_rng(5)
  estimator = margin.init()
  assert error(estimator, TRUE_WEIGHTS) > 0.06
  estimator = learned(rng, estimator, TRUE_WEIGHTS, 20)
  assert error(estimator, TRUE_WEIGHTS) < 0.03
  other = TRUE_WEIGHTS + np.array([-1.0, -0.4, 0.0, 0.0])
  assert error(estimator, other) > 0.15
  followed = learned(rng, estimator, other, 40, forget=0.9)
  assert error(followed, other) < 0.05
  # Negative control: what never forgets stays behind.
  slow = learned(
    rng, learned(rng, estimator, TRUE_WEIGHTS, 100, 1.0), other, 15, 1.0
  )
  fast = learned(
    rng, learned(rng, estimator, TRUE_WEIGHTS, 100, 0.9), other, 15, 0.9
  )
  assert error(fast, other) < 0.5 * error(slow, other)


def test_margin_ignores_what_was_not_observed():
  rng = np.random.default_rng(6)
  margins, _, seen = margin_rounds(rng, TRUE_WEIGHTS)
  spoiled = np.where(seen.is_observed, margins, np.nan)
  one = margin.update(margin.init(), margins, seen)
  two = margin.update(margin.init(), spoiled, seen)
  np.testing.assert_allclose(one.weights, two.weights)
  nothing = labels.of_chain(np.zeros(3, int), np.zeros(3, int), 5)
  start = margin.init()
  assert margin.update(start, margins[:3], nothing) is start


def test_margin_survives_certain_drafts():
  estimator = margin.init()
  margins = np.full((64, 3), np.inf)
  seen = labels.of_chain(np.full(64, 3), np.full(64, 3), 3)
  for _ in range(50):
    estimator = margin.update(estimator, margins, seen)
  assert np.all(np.isfinite(estimator.weights))
  got = margin.apply(
    jnp.asarray(estimator.weights, jnp.float32),
    jnp.array([[jnp.inf, 0.0, jnp.nan]]),
  )
  assert float(got[0, 0]) > 0.99
  assert np.isnan(got[0, 2])
