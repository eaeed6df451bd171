# SPDX-License-Identifier: MIT
"""On-policy distillation: against AngelSpec, and what its streams mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import on_policy
from tests import shared_data

SETTINGS = {
  'default': dict(),
  'nodecay_w': dict(decay=1.0, accepted=0.5),
  'noclamp': dict(max_loss=None, min_logp=None),
  'clamp02': dict(max_loss=0.2),
}
# Accepted and rejected sums, and how many were clamped, of the reference.
METRICS = {
  'default': (0.26992547512054443, 2.058089256286621, 0),
  'nodecay_w': (0.26992547512054443, 2.394674301147461, 0),
  'noclamp': (0.26992547512054443, 2.369370222091675, 0),
  'clamp02': (0.20350749790668488, 0.6264150738716125, 4),
}


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'name, chunk', [*zip(SETTINGS, (1, 2, 3, 4), strict=True)]
)
def test_equals_the_reference_in_value_and_gradient(name, chunk):
  golden = np.load(shared_data.path('goldens/losses/eagle_mtp_opd.npz'))
  config = on_policy.OnPolicy(**SETTINGS[name], chunk=chunk)
  head = jnp.asarray(golden['target_lm_head'].T)

  def blocks(key):
    array = jnp.asarray(golden[key])
    return array.reshape(1, 4, 3, *array.shape[1:])

  def loss(hidden):
    return on_policy.loss(
      config,
      hidden,
      head,
      blocks('opd_proposed_ids'),
      jnp.ones((1, 4, 3), bool),
      blocks('opd_teacher_hidden'),
      head,
    )

  with jax.default_matmul_precision('highest'):
    (value, metrics), grad = jax.jit(jax.value_and_grad(loss, has_aux=True))(
      blocks('opd_student_hidden')
    )
  np.testing.assert_allclose(value, golden[f'opd_{name}_loss'], atol=1e-5)
  want = golden[f'opd_{name}_grad']
  np.testing.assert_allclose(grad.reshape(12, 16), want, atol=1e-5)
  assert np.abs(want).max() > 1e-3
  accepted, rejected, clamped = METRICS[name]
  np.testing.assert_allclose(metrics['on_policy_accepted'], accepted, atol=1e-5)
  np.testing.assert_allclose(metrics['on_policy_rejected'], rejected, atol=1e-4)
  assert metrics['num_clamped'] == clamped
  assert (metrics['num_accepted'], metrics['num_rejected']) == (2, 10)


def test_streams_of_a_block_by_hand():
  # Accepted, contradicted, right again (too late), no proposal.
  logp = jnp.log(jnp.array([[0.5, 0.2, 0.9, 0.1]]))
  logq = jnp.log(jnp.array([[0.4, 0.4, 0.6, 0.1]]))
  config = on_policy.OnPolicy(accepted=2.0, rejected=3.0, decay=0.5)
  value, metrics = on_policy.streams(
    config,
    logp,
    logq,
    jnp.array([[True, False, True, True]]),
    jnp.array([[True, True, True, False]]),
  )
  ratio = np.array([0.5 / 0.4, 0.2 / 0.4, 0.9 / 0.6])
  k3 = ratio - np.log(ratio) - 1
  weights = np.array([2.0, 3 * 0.5, 3 * 0.25])
  np.testing.assert_allclose(value, weights @ k3 / weights.sum(), rtol=1e-5)
  np.testing.assert_allclose(metrics['on_policy_weight'], weights.sum())
  assert (metrics['num_accepted'], metrics['num_rejected']) == (1, 2)


def test_k3_is_the_divergence_on_average():
  p, q = np.array([0.6, 0.3, 0.1]), np.array([0.2, 0.3, 0.5])
  config = on_policy.OnPolicy(decay=1.0)

  def of_token(token):
    return on_policy.streams(
      config,
      jnp.log(p[token])[None],
      jnp.log(q[token])[None],
      jnp.zeros(1, bool),
      jnp.ones(1, bool),
    )[0]

  got = sum(q[token] * of_token(token) for token in range(3))
  np.testing.assert_allclose(got, np.sum(q * np.log(q / p)), rtol=1e-5)


def test_the_target_has_no_gradient_and_clamped_tokens_teach_nothing():
  config = on_policy.OnPolicy(max_loss=1.0, min_logp=-5.0)

  def loss(logp, logq):
    none = jnp.zeros(3, bool)
    return on_policy.streams(config, logp, logq, none, ~none)[0]

  # Usual; k3 far above its limit; the draft below its floor.
  logp = jnp.array([-1.0, -0.1, -2.0])
  logq = jnp.array([-2.0, -4.0, -9.0])
  of_p, of_q = jax.grad(loss, argnums=(0, 1))(logp, logq)
  assert np.all(of_p == 0)
  assert of_q[0] < 0 and np.all(of_q[1:] == 0)


def test_without_proposals_there_is_no_loss_and_no_gradient():
  none = jnp.zeros((2, 3), bool)
  value, grad = jax.value_and_grad(
    lambda logq: on_policy.streams(
      on_policy.OnPolicy(), jnp.zeros((2, 3)), logq, none, none
    )[0]
  )(-jnp.ones((2, 3)))
  assert value == 0 and np.all(grad == 0)


@pytest.mark.parametrize(
  'wrong',
  [
    dict(accepted=-1.0),
    dict(accepted=0.0, rejected=0.0),
    dict(decay=0.0),
    dict(max_loss=0.0),
    dict(min_logp=1.0),
    dict(chunk=0),
  ],
)
def test_bad_settings_are_refused(wrong):
  with pytest.raises(errors.UserError, match='expected'):
    on_policy.OnPolicy(**wrong)
