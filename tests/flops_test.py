# SPDX-License-Identifier: MIT
"""FLOPs of matmuls, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jspec import flops

X = jax.ShapeDtypeStruct((3, 5), jnp.float32)
W = jax.ShapeDtypeStruct((5, 5), jnp.float32)
ONE = 2 * 3 * 5 * 5


def test_a_matmul_and_its_gradients():
  def loss(x, w):
    return jnp.sum((x @ w) ** 2)

  assert flops.count(lambda x, w: x @ w, X, W) == ONE
  assert flops.count(jax.grad(loss, argnums=(0, 1)), X, W) == 3 * ONE
  assert flops.count(jnp.sin, X) == 0


def test_batches_count_once_each():
  def run(a, b):
    return jnp.einsum('BTD,BDF->BTF', a, b)

  a = jax.ShapeDtypeStruct((7, 3, 5), jnp.float32)
  b = jax.ShapeDtypeStruct((7, 5, 2), jnp.float32)
  assert flops.count(run, a, b) == 2 * 7 * 3 * 5 * 2


def test_a_loop_counts_every_turn_and_a_branch_the_largest():
  def scanned(x, w):
    return jax.lax.scan(lambda x, _: (x @ w, None), x, length=11)[0]

  def branched(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda: x @ w @ w, lambda: x @ w)

  assert flops.count(scanned, X, W) == 11 * ONE
  assert flops.count(jax.jit(branched), X, W) == 2 * ONE
  # The forward pass, and once more for each of the two gradients.
  grad = jax.grad(lambda w, x: jnp.sum(scanned(x, w)))
  assert flops.count(grad, W, X) == 33 * ONE


def test_rows_by_expert_meet_one_matrix():
  experts = jax.ShapeDtypeStruct((4, 5, 5), jnp.float32)
  sizes = jax.ShapeDtypeStruct((4,), jnp.int32)
  assert flops.count(jax.lax.ragged_dot, X, experts, sizes) == ONE

  def loss(experts, x, sizes):
    return jnp.sum(jax.lax.ragged_dot(x, experts, sizes) ** 2)

  found = flops.count(jax.grad(loss), experts, X, sizes)
  assert found == 2 * ONE


def test_a_shard_counts_as_often_as_there_are_devices():
  mesh = Mesh(np.array(jax.devices()[:2]), ('model',))
  run = jax.shard_map(
    lambda x, w: x @ w,
    mesh=mesh,
    in_specs=(PartitionSpec(), PartitionSpec(None, 'model')),
    out_specs=PartitionSpec(None, 'model'),
  )
  w = jax.ShapeDtypeStruct((5, 4), jnp.float32)
  assert flops.count(run, X, w) == 2 * 3 * 5 * 4
