# SPDX-License-Identifier: MIT
"""Shared out experts add up to all of them, of few rows and of many."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jspec.nn import experts, experts_on_mesh

WIDTH, FF_WIDTH, NUM_EXPERTS, TOP_K = 6, 4, 8, 3
# Shares of 128 entries; 640 and more of them.
SHAPE = (8, 30)


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture
def by_turns(monkeypatch):
  monkeypatch.setattr(experts_on_mesh, 'MOST_AT_ONCE', 100)


def problem(shape=SHAPE, seed=0):
  """Rows, what they chose, and the experts with their biases."""
  rng = np.random.default_rng(seed)

  def normal(*sizes):
    return jnp.asarray(rng.normal(size=sizes), jnp.float32)

  chosen = np.argsort(rng.normal(size=(*shape, NUM_EXPERTS)))[..., :TOP_K]
  arrays = (
    normal(NUM_EXPERTS, WIDTH, 2 * FF_WIDTH),
    normal(NUM_EXPERTS, FF_WIDTH, WIDTH),
    normal(NUM_EXPERTS, 2 * FF_WIDTH),
    normal(NUM_EXPERTS, WIDTH),
  )
  choice = experts.Choice(
    jnp.asarray(chosen, jnp.int32), jnp.abs(normal(*shape, TOP_K))
  )
  return normal(*shape, WIDTH), choice, arrays


def mesh_of(num_devices=4):
  return Mesh(np.array(jax.devices()[:num_devices]), ('expert',))


def shared(rows=()):
  return jax.jit(
    functools.partial(experts_on_mesh.mix, mesh_of(), 'expert', rows=rows)
  )


def close(got, want):
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_few_rows_are_those_of_all_experts():
  x, choice, arrays = problem((3, 5))
  close(shared()(x, choice, *arrays), experts.mix(x, choice, *arrays))


@pytest.mark.parametrize('rows', [(), ('expert',)], ids=['whole', 'gathered'])
def test_many_rows_are_those_of_all_experts(by_turns, rows):
  x, choice, arrays = problem()
  want = experts.mix_reference(x, choice, *arrays)
  close(shared(rows)(x, choice, *arrays), want)


@pytest.mark.few(1)
@pytest.mark.parametrize('crowd', [(0, 1, 2), (7, 6, 5), (0, 3, 6)])
def test_all_rows_may_choose_the_same_experts(by_turns, crowd):
  x, choice, arrays = problem()
  every = jnp.broadcast_to(jnp.asarray(crowd, jnp.int32), choice.experts.shape)
  choice = choice._replace(experts=every)
  want = experts.mix_reference(x, choice, *arrays)
  close(shared()(x, choice, *arrays), want)


@pytest.mark.slow
def test_gradients_of_many_rows_are_those_of_all_experts(by_turns):
  x, choice, arrays = problem()

  def loss(mix, x, weights, *arrays):
    got = mix(x, choice._replace(weights=weights), *arrays)
    return jnp.sum(jnp.sin(0.1 * got))

  found = [
    jax.grad(functools.partial(loss, mix), argnums=range(6))(
      x, choice.weights, *arrays
    )
    for mix in (shared(('expert',)), experts.mix_reference)
  ]
  for got, want in zip(*found, strict=True):
    assert np.abs(want).max() > 1e-2
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
  'begin, want', [(0, [3, 0, 1]), (2, [1, 0, 3]), (4, [0, 0, 4]), (9, [0] * 3)]
)
def test_a_turn_takes_what_lies_within_it(begin, want):
  ends = jnp.array([3, 3, 9])
  starts = jnp.array([0, 3, 3])
  got = experts_on_mesh._within(jnp.int32(begin), 4, starts, ends)
  np.testing.assert_array_equal(got, want)


def test_many_rows_need_no_room_for_the_worst(monkeypatch):
  x, choice, arrays = problem((8, 1024))
  mesh = mesh_of()
  whole = NamedSharding(mesh, PartitionSpec())
  by_expert = NamedSharding(mesh, PartitionSpec('expert'))
  lies = (whole, whole, *[by_expert] * 4)

  def temporary(most):
    monkeypatch.setattr(experts_on_mesh, 'MOST_AT_ONCE', most)
    run = functools.partial(experts_on_mesh.mix, mesh, 'expert')
    compiled = jax.jit(run, in_shardings=lies).lower(x, choice, *arrays)
    return compiled.compile().memory_analysis().temp_size_in_bytes

  assert temporary(100) < 0.5 * temporary(10**9)
