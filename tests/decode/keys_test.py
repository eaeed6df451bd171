# SPDX-License-Identifier: MIT
"""Keys depend on seed, position and role, and on nothing else."""

import jax
import jax.numpy as jnp
import numpy as np

from jspec.decode import keys


def test_row_keys_equal_two_folds_whatever_the_batch():
  seeds = jnp.array([7, 7, 2**32 - 1], jnp.uint32)
  positions = jnp.array([0, 40_000, 3], jnp.int32)
  together = jax.random.key_data(keys.row_keys(seeds, positions, keys.ACCEPT))
  for row in range(3):
    key = jax.random.key(seeds[row], impl='threefry2x32')
    key = jax.random.fold_in(jax.random.fold_in(key, positions[row]), 1)
    np.testing.assert_array_equal(together[row], jax.random.key_data(key))


def test_row_keys_differ_when_seed_position_or_role_does():
  seeds, positions = np.meshgrid(np.arange(16), np.arange(64))
  data = [
    np.asarray(
      jax.random.key_data(
        keys.row_keys(
          jnp.asarray(seeds.ravel(), jnp.uint32),
          jnp.asarray(positions.ravel(), jnp.int32),
          role,
        )
      )
    )
    for role in (keys.DRAFT, keys.ACCEPT, keys.RESIDUAL)
  ]
  data = np.concatenate(data)
  assert len(np.unique(data, axis=0)) == len(data) == 3 * 16 * 64


def test_uniforms_are_uniform_and_uncorrelated_over_positions_and_roles():
  num = 20_000
  seeds = jnp.arange(num, dtype=jnp.uint32)
  draws = [
    np.asarray(keys.uniforms(seeds, jnp.full((num,), position), role))
    for position, role in [(5, 1), (6, 1), (7, 1), (5, 2), (5, 0)]
  ]
  for u in draws:
    assert 0 <= u.min() and u.max() < 1
    assert abs(u.mean() - 0.5) < 5 / np.sqrt(12 * num)  # five sigma
  correlation = np.corrcoef(draws) - np.eye(len(draws))
  assert np.abs(correlation).max() < 5 / np.sqrt(num)


def test_node_uniforms_belong_to_seed_round_role_and_node():
  seeds = jnp.array([7, 8], jnp.uint32)
  rounds = jnp.array([3, 40_000], jnp.int32)
  drawn = np.asarray(keys.node_uniforms(seeds, rounds, keys.TEST, 5))
  assert drawn.shape == (2, 5)
  row = keys.row_keys(seeds, rounds, keys.TEST)[1]
  one = jax.random.uniform(jax.random.fold_in(row, 3), (), jnp.float32)
  assert drawn[1, 3] == one
  # Fewer nodes are the same numbers: a budget changes nothing.
  fewer = keys.node_uniforms(seeds, rounds, keys.TEST, 2)
  np.testing.assert_array_equal(fewer, drawn[:, :2])


def test_node_uniforms_differ_from_all_others_of_a_request():
  positions = jnp.arange(64, dtype=jnp.int32)
  seeds = jnp.full((64,), 5, jnp.uint32)
  roles = keys.DRAFT, keys.ACCEPT, keys.RESIDUAL, keys.TEST, keys.BONUS
  drawn = [np.asarray(keys.uniforms(seeds, positions, role)) for role in roles]
  for role in (keys.DRAFT, keys.TEST):
    nodes = keys.node_uniforms(seeds, positions, role, 16)
    drawn.append(np.asarray(nodes).ravel())
  drawn = np.concatenate(drawn)
  # 2368 of 2**23 numbers: a third of one pair is equal by chance.
  assert len(np.unique(drawn)) >= len(drawn) - 3
