# SPDX-License-Identifier: MIT
"""However a step is spread over devices, it is the step of one device."""

import functools

import jax
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from jspec import errors
from jspec.train import layout
from tests.train import spread_steps

slow = pytest.mark.slow
PRESETS = {
  'dp': dict(),
  'fsdp': dict(preset='fsdp'),
  'hsdp': dict(preset='fsdp', data=2),
  'fsdp_tp': dict(preset='fsdp_tp'),
  'tp4': dict(preset='fsdp_tp', model=4),
  'sp': dict(preset='sp'),
  'sp4': dict(preset='sp', sequence=4),
  'ep': dict(preset='ep'),
  'ep2': dict(preset='ep', expert=2),
}


@functools.cache
def alone(name, is_sparse=False, num_micro_batches=1):
  before, _, after, metrics = spread_steps.one_step(
    name,
    spread_steps.mesh_of(1),
    is_sparse=is_sparse,
    num_micro_batches=num_micro_batches,
  )
  return before, jax.device_get(after.params), metrics


def check(name, preset, *, is_sparse=False, num_micro_batches=1):
  devices = spread_steps.mesh_of(
    num_portions=num_micro_batches, **PRESETS[preset]
  )
  before, given, after, metrics = spread_steps.one_step(
    name,
    devices,
    is_sparse=is_sparse,
    num_micro_batches=num_micro_batches,
  )
  first, params, expected = alone(name, is_sparse)
  jax.tree.map(np.testing.assert_array_equal, before, first)
  # The step is of gradient descent by 1: parameters differ as gradients do.
  for path, value in params.items():
    np.testing.assert_allclose(
      after.params[path], value, atol=1e-5, err_msg=path
    )
  moved = [np.abs(params[p] - first[p]).max() for p in params]
  assert max(moved) > 1e-3
  for key in ('loss', 'grad_norm', 'num_blocks', 'tokens_per_round'):
    np.testing.assert_allclose(metrics[key], expected[key], rtol=1e-5)
  # It lies where it lay, and its old buffers are gone.
  for path, value in after.params.items():
    lies = NamedSharding(
      devices, layout.Rules(devices).stored(path.split('.')[-1], value.shape)
    )
    assert value.sharding.is_equivalent_to(lies, value.ndim), path
    assert given.params[path].is_deleted(), path


@slow
@pytest.mark.parametrize(
  'preset', ['dp', 'fsdp', 'hsdp', 'fsdp_tp', 'tp4', 'sp', 'sp4']
)
@pytest.mark.parametrize('name', ['dfly', 'eagle3', 'mtp'])
def test_a_step_is_that_of_one_device(name, preset):
  check(name, preset)


@slow
@pytest.mark.parametrize(
  'name, preset',
  [
    ('mtp_moe', 'ep'),
    ('mtp_moe', 'ep2'),
    ('dfly', 'ep'),
    ('mtp_moe', 'fsdp'),
    ('mtp_moe', 'fsdp_tp'),
    ('mtp_moe', 'sp'),
  ],
)
def test_a_step_with_experts_is_that_of_one_device(name, preset):
  check(name, preset, is_sparse=True)


@slow
@pytest.mark.parametrize('name, preset', [('dfly', 'tp4'), ('mtp', 'sp4')])
def test_portions_of_a_batch_add_up_on_a_mesh(name, preset):
  check(name, preset, num_micro_batches=4)


@slow
def test_mean_of_the_means_of_devices_would_be_another():
  """Rows differ in what they hold, or the tests above could not fail."""
  batch = spread_steps.rows()
  halves = [
    spread_steps.one_step(
      'mtp',
      spread_steps.mesh_of(1),
      batch={
        k: np.tile(v[i * 4 : i * 4 + 4], (2, 1)) for k, v in batch.items()
      },
    )[3]
    for i in range(2)
  ]
  expected = alone('mtp')[2]
  weights = [half['num_blocks'] for half in halves]
  assert weights[0] != weights[1]
  mean = np.mean([half['loss'] for half in halves])
  assert abs(mean - expected['loss']) > 1e-3
  np.testing.assert_allclose(
    np.average([half['tokens_per_round'] for half in halves], weights=weights),
    expected['tokens_per_round'],
    rtol=1e-5,
  )


@slow
def test_optimiser_state_lies_with_its_parameter():
  devices = spread_steps.mesh_of(preset='fsdp')
  _, _, after, _ = spread_steps.one_step(
    'dfly', devices, optimizer=optax.adamw(1e-3)
  )
  moments = after.opt_state[0]
  for path, value in after.params.items():
    for tree in (moments.mu, moments.nu):
      assert tree[path].sharding.is_equivalent_to(value.sharding, value.ndim)


def test_an_axis_for_experts_is_refused_where_there_are_none():
  devices = spread_steps.mesh_of(preset='ep')
  with pytest.raises(
    errors.UserError, match='mesh.expert is 8, but no experts'
  ):
    layout.check(devices, {'block.layers.q': np.zeros((2, 8, 8))})
  experts = {'layer.moe.experts_down': np.zeros((6, 8, 8))}
  layout.check(devices, experts)
  with pytest.raises(errors.UserError, match='6 experts do not share out'):
    layout.Rules(devices).tree(experts)
