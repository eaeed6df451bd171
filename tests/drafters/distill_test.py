# SPDX-License-Identifier: MIT
"""Chain losses and D-PACE: identities against enumeration and autodiff."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import distill, losses


def laws(seed, num_slots=3, vocab_size=3):
  rng = np.random.default_rng(seed)
  return rng.dirichlet(np.ones(vocab_size), (2, num_slots))


@pytest.mark.parametrize('seed', range(3))
def test_end_to_end_is_what_rejection_sampling_accepts(seed):
  p, q = laws(seed)
  expected = 0.0
  for draft in itertools.product(range(3), repeat=3):
    chance, accepted = 1.0, 1.0
    for slot, token in enumerate(draft):
      chance *= q[slot, token]
    for slot, token in enumerate(draft):
      accepted *= min(1.0, p[slot, token] / q[slot, token])
      expected += chance * accepted
  tv = jnp.asarray(np.abs(p - q).sum(-1) / 2)[None]
  got = distill.end_to_end(tv, jnp.ones((1, 3), bool))
  np.testing.assert_allclose(got, 1 - expected / 3, rtol=1e-5)
  # The control: a wrong order of slots is another number.
  turned = distill.end_to_end(tv[:, ::-1], jnp.ones((1, 3), bool))
  assert abs(turned - got) > 1e-4


def test_chains_without_slots_are_left_out():
  tv = jnp.array([[0.5, 0.5], [0.1, 0.9], [0.7, 0.7]])
  counts = jnp.array([[True, True], [True, False], [False, False]])
  want = ((1 - (0.5 + 0.25) / 2) + (1 - 0.9)) / 2
  np.testing.assert_allclose(distill.end_to_end(tv, counts), want, rtol=1e-6)
  none = jnp.zeros_like(counts)
  value, grad = jax.value_and_grad(distill.end_to_end)(tv, none)
  assert value == 0 and np.all(grad == 0)


def test_the_surrogate_with_tv_has_the_gradient_of_end_to_end():
  rng = np.random.default_rng(0)
  tv = jnp.asarray(rng.uniform(size=(5, 4)), jnp.float32)
  # A slot that is never accepted: nothing divides by its alpha.
  tv = tv.at[0, 1].set(1.0)
  lengths = jnp.array([4, 3, 4, 0, 1])
  counts = jnp.arange(4) < lengths[:, None]
  want = jax.grad(distill.end_to_end)(tv, counts)
  got = jax.grad(lambda x: distill.end_to_end_surrogate(x, x, counts))(tv)
  np.testing.assert_allclose(got, want, atol=1e-6)
  assert np.all(got[3] == 0) and np.abs(got).max() > 0.1
  # Its weights have no gradient: with another loss, tv gets none.
  other = jax.grad(distill.end_to_end_surrogate, argnums=1)(tv, tv, counts)
  assert np.all(other == 0)


def test_confidence_is_least_at_the_acceptance_and_moves_only_the_logit():
  tv = jnp.array([0.3, 0.8])
  best = jnp.log((1 - tv) / tv)

  def loss(logits, tv):
    return jnp.sum(distill.confidence(logits, tv))

  of_logits, of_tv = jax.grad(loss, argnums=(0, 1))(best, tv)
  np.testing.assert_allclose(of_logits, 0, atol=1e-6)
  assert np.all(of_tv == 0)
  np.testing.assert_allclose(
    jax.grad(loss)(best + 1, tv), jax.nn.sigmoid(best + 1) - (1 - tv), rtol=1e-5
  )
  assert np.isfinite(loss(jnp.array([200.0, -200.0]), tv))


def test_dpace_of_the_papers_example():
  ce = -jnp.log(jnp.array([0.9, 0.5, 0.1]))
  got = losses.dpace_weights(ce, jnp.ones(3, bool), 0.5)
  np.testing.assert_allclose(got, [2.0544, 1.1044, 0.3919], atol=1e-4)


def test_dpace_of_constant_chances_and_of_full_smoothing():
  ce = -jnp.log(jnp.full(4, 0.5))
  everywhere = jnp.ones(4, bool)
  got = losses.dpace_weights(ce, everywhere, 0.0)
  powers = 0.5 ** np.arange(1, 5)
  np.testing.assert_allclose(got, np.cumsum(powers[::-1])[::-1], rtol=1e-6)
  np.testing.assert_allclose(
    losses.dpace_weights(ce, everywhere, 1.0), [4, 3, 2, 1]
  )
  # Slots that do not count have no weight and add none to those before.
  np.testing.assert_allclose(
    losses.dpace_weights(ce, jnp.arange(4) < 2, 0.0),
    [0.75, 0.25, 0, 0],
    rtol=1e-6,
  )


def test_dpace_is_the_gradient_of_the_expected_length():
  rng = np.random.default_rng(0)
  logits = jnp.asarray(rng.normal(size=(2, 5, 7)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, 7, (2, 5, 1)))

  def cross_entropy(logits):
    logq = jax.nn.log_softmax(logits)
    return -jnp.take_along_axis(logq, labels, axis=-1)[..., 0]

  def weighted(logits, alpha):
    ce = cross_entropy(logits)
    weights = losses.dpace_weights(ce, jnp.ones_like(ce, bool), alpha)
    return jnp.sum(weights * ce)

  def expected_length(logits):
    return jnp.sum(jnp.cumprod(jnp.exp(-cross_entropy(logits)), axis=-1))

  want = -jax.grad(expected_length)(logits)
  np.testing.assert_allclose(jax.grad(weighted)(logits, 0.0), want, atol=1e-6)
  # The control: smoothing changes it.
  assert np.abs(jax.grad(weighted)(logits, 0.5) - want).max() > 1e-2
