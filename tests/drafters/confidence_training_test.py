# SPDX-License-Identifier: MIT
"""A confidence head that trains alone stays bounded and moves nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jspec.drafters import block_loss, objective
from jspec.testing import toy
from tests.drafters import every_method

NUM_STEPS = 200


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
def test_loss_stays_bounded_over_many_steps(dtype):
  """Also with weights and optimiser in bfloat16, where others saw spikes."""
  target = toy.target()
  drafter = toy.drafter(
    target,
    method=every_method.BLOCK['dspark'],
    loss_config=block_loss.LossConfig(
      num_anchors=6, mix=objective.Mix(ce=0.0, confidence=1.0, chunk=6)
    ),
  )
  answer = np.broadcast_to(np.arange(16) > 3, (2, 16))
  batch = every_method.batch(target, drafter.taps, answer)
  graph, params, rest = nnx.split(drafter, nnx.Param, ...)
  params = jax.tree.map(lambda x: x.astype(dtype), params)
  optimizer = optax.adam(1e-2)

  def value(params, key):
    return nnx.merge(graph, params, rest).loss(batch, key)

  def step(carry, key):
    params, state = carry
    (loss, _), grads = jax.value_and_grad(value, has_aux=True)(params, key)
    updates, state = optimizer.update(grads, state)
    return (optax.apply_updates(params, updates), state), loss

  keys = jax.random.split(jax.random.key(0), NUM_STEPS)
  (trained, _), losses = jax.jit(
    lambda params: jax.lax.scan(step, (params, optimizer.init(params)), keys)
  )(params)
  losses = np.asarray(losses, np.float32)
  assert np.all(np.isfinite(losses))
  # The entropy of a coin is what a head costs that knows nothing.
  assert losses.max() < 4 * np.log(2) and losses[-20:].mean() < np.log(2)
  assert losses[-20:].mean() < losses[:20].mean()
  jax.tree.map(np.testing.assert_array_equal, trained['block'], params['block'])
  moved = (
    trained['confidence']['proj'][...] != params['confidence']['proj'][...]
  )
  assert np.any(moved)
