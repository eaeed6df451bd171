# SPDX-License-Identifier: MIT
"""A layer of MTP that begins as a layer of its target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import mtp_warm_start
from jspec.testing import toy
from tests.drafters import small_mtp

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def test_warm_start_copies_a_layer_and_passes_the_state_through():
  target = toy.target()
  drafter = small_mtp.drafter(target, qk_norm=False)
  mtp_warm_start.warm_start_from_target_layer(drafter, target, 1)
  for name, leaf in drafter.layer.leaves().items():
    theirs = getattr(target.layers, name)[...][1]
    np.testing.assert_array_equal(leaf[...], theirs)
  batch = small_mtp.batch(target)
  states = drafter.first_states(batch.taps)
  x = drafter.inputs(batch.tokens, states, jnp.zeros(batch.tokens.shape, bool))
  rms = np.sqrt(np.mean(np.square(states), -1, keepdims=True) + 1e-5)
  np.testing.assert_allclose(
    x, states / rms * drafter.hnorm[...], rtol=1e-4, atol=1e-5
  )
  # The copy is the target's layer on what it is given.
  reverse = small_mtp.drafter(target, qk_norm=False, embedding_first=False)
  mtp_warm_start.warm_start_from_target_layer(reverse, target, 1)
  reverse.hnorm[...] = drafter.hnorm[...]
  np.testing.assert_allclose(
    reverse.inputs(batch.tokens, states, batch.tokens < 0), x, rtol=1e-5
  )
  for layer, changes, message in (
    (3, {'qk_norm': False}, 'layer=3: the target has layers 0..2'),
    (1, {}, 'q_norm'),
    (1, {'qk_norm': False, **small_mtp.EXPERTS}, 'router'),
    (1, {'qk_norm': False, 'ff_width': 40}, 'gate_up'),
  ):
    other = small_mtp.drafter(target, **changes)
    with pytest.raises(errors.UserError, match=message):
      mtp_warm_start.warm_start_from_target_layer(other, target, layer)


def test_warm_start_takes_the_norms_of_queries_and_keys_along():
  target = toy.target(qk_norm=True)
  drafter = small_mtp.drafter(target, qk_norm=True)
  mtp_warm_start.warm_start_from_target_layer(drafter, target, 2)
  for name in ('q_norm', 'k_norm', 'qkv'):
    theirs = getattr(target.layers, name)[...][2]
    np.testing.assert_array_equal(getattr(drafter.layer, name)[...], theirs)
  # A layer of another kind does not fit.
  other = toy.target(qk_norm=True, qkv_bias=True)
  with pytest.raises(errors.UserError, match='qkv_bias'):
    mtp_warm_start.warm_start_from_target_layer(drafter, other, 2)
