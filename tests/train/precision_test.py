# SPDX-License-Identifier: MIT
"""Less memory: the same step. Fewer bits: nearly the same, masters whole."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jspec import errors
from jspec.nn import remat
from jspec.train import settings
from tests.train import spread_steps, tiny

slow = pytest.mark.slow
NAMES = ('dfly', 'eagle3', 'mtp', 'mtp_moe')


def step(name, **changes):
  return spread_steps.one_step(name, spread_steps.mesh_of(1), **changes)


@slow
@pytest.mark.parametrize('name', NAMES)
def test_what_is_computed_again_changes_nothing(name):
  _, _, expected, of_expected = step(name)
  for policy in ('dots', 'full'):
    before, _, after, metrics = step(name, policy=policy)
    np.testing.assert_allclose(metrics['loss'], of_expected['loss'], rtol=1e-6)
    for path, value in after.params.items():
      np.testing.assert_allclose(
        value, expected.params[path], atol=1e-6, err_msg=path
      )
    assert any(np.abs(before[p] - after.params[p]).max() > 1e-3 for p in before)


@slow
def test_a_mesh_and_remat_go_together():
  _, _, expected, _ = step('dfly')
  devices = spread_steps.mesh_of(preset='fsdp_tp')
  _, _, after, _ = spread_steps.one_step('dfly', devices, policy='full')
  for path, value in after.params.items():
    np.testing.assert_allclose(value, expected.params[path], atol=1e-5)


@pytest.mark.parametrize(
  'policy, expected',
  [
    ('none', {'more'}),
    ('dots', {'product'}),
    ('full', {'inputs'}),
  ],
)
def test_a_policy_says_what_is_kept(policy, expected):
  """Of tanh(x w) ** 2, for the gradient by x."""
  w, x = 0.1 * jnp.arange(64.0).reshape(8, 8), jnp.linspace(-1, 1, 32)
  x = x.reshape(4, 8)

  def layer(x):
    return jnp.sum(jnp.square(jnp.tanh(x @ w)))

  with remat.over(policy):
    _, pull = jax.vjp(remat.layer(layer), x)
  found = set()
  for leaf in jax.tree.leaves(pull):
    if leaf.shape == x.shape:
      is_input, is_product = (np.allclose(leaf, y) for y in (x, x @ w))
      found.add('inputs' if is_input else 'product' if is_product else 'more')
  assert found == expected


@slow
@pytest.mark.parametrize('name', NAMES)
def test_bfloat16_gives_nearly_the_gradient_and_keeps_masters(name):
  first, _, expected, of_expected = step(name)
  before, _, after, metrics = step(name, compute_dtype='bfloat16')
  assert metrics['loss'].dtype == np.float32
  np.testing.assert_allclose(metrics['loss'], of_expected['loss'], rtol=0.03)
  ours, theirs = [], []
  for path, value in after.params.items():
    assert value.dtype == jnp.float32
    np.testing.assert_array_equal(before[path], first[path])
    ours.append(np.ravel(value - before[path]))
    theirs.append(np.ravel(expected.params[path] - before[path]))
  ours, theirs = np.concatenate(ours), np.concatenate(theirs)
  cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
  assert cosine > 0.99
  # It did compute with fewer bits.
  assert np.abs(ours - theirs).max() > 1e-6


@slow
def test_moments_stay_in_float32():
  *_, after, _ = step(
    'dfly', compute_dtype='bfloat16', optimizer=optax.adamw(1e-3)
  )
  for leaf in jax.tree.leaves(after.opt_state):
    assert leaf.dtype in (jnp.float32, jnp.int32)


def test_unknown_choices_are_refused(tmp_path):
  for name in ('remat', 'compute_dtype'):
    with pytest.raises(errors.UserError, match=f'{name} is half: choose one'):
      tiny.train(tmp_path, **{name: 'half'})
  assert settings.DTYPES == ('float32', 'bfloat16')


@slow
def test_a_run_in_bfloat16_learns(tmp_path):
  rows = []
  tiny.train(
    tmp_path,
    on_progress=lambda step, row: rows.append(row['loss']),
    compute_dtype='bfloat16',
    remat='dots',
    data__mode='online',
    data__store='',
    num_steps=40,
    eval__every=40,
    optim__learning_rate=1e-2,
  )
  # Batches differ by 0.1 at most, which is 2 %.
  assert np.mean(rows[-5:]) < 0.9 * np.mean(rows[:5])
