# SPDX-License-Identifier: MIT
"""Products are found as often as they run, and run as often as they say."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.bench import matmuls

A, B = jnp.ones((4, 8)), jnp.ones((8, 6))


def counts(function, *args):
  """Operations of the products by how often each runs."""
  found = matmuls.find(function, *args)
  return sorted((m.flop, num) for m, num in found.counts.items())


def test_product_of_a_plain_function():
  assert counts(lambda a, b: a @ b, A, B) == [(2 * 4 * 8 * 6, 1)]
  assert counts(jax.jit(lambda a, b: a @ b), A, B) == [(2 * 4 * 8 * 6, 1)]


def test_batch_axes_count_once():
  x, y = jnp.ones((3, 4, 8)), jnp.ones((3, 8, 6))
  assert counts(lambda x, y: x @ y, x, y) == [(3 * 2 * 4 * 8 * 6, 1)]


def test_loops_repeat_their_products():
  def body(x, _):
    return jax.lax.scan(lambda y, _: (y @ y, None), x, None, length=3)[0], None

  square = jnp.ones((5, 5))
  assert counts(lambda x: jax.lax.scan(body, x, None, length=4)[0], square) == [
    (250, 12)
  ]
  assert counts(
    lambda x: jax.lax.fori_loop(0, 7, lambda _, y: y @ y, x), square
  ) == [(250, 7)]


def test_gradient_has_its_products_too():
  def loss(a, b):
    return jnp.sum(jnp.sin(a @ b))

  found = counts(jax.grad(loss, argnums=(0, 1)), A, B)
  assert found == [(384, 1)] * 3
  # Nothing uses the other gradient.
  assert counts(jax.grad(loss), A, B) == [(384, 1)] * 2


def test_what_nothing_uses_is_left_out():
  def function(a, b):
    del b
    unused = a @ a.T
    return jnp.sum(a) + 0 * unused.shape[0]

  assert counts(function, A, B) == []


def test_the_largest_branch_counts():
  def function(index, x):
    branches = [lambda x: x, lambda x: x @ x, lambda x: x @ x @ x]
    return jax.lax.switch(index, branches, x)

  assert counts(function, jnp.int32(0), jnp.ones((5, 5))) == [(250, 2)]


def test_what_cannot_be_counted_is_told():
  def function(num, x):
    return jax.lax.fori_loop(0, num, lambda _, y: y @ y, x)

  found = matmuls.find(function, jnp.int32(3), jnp.ones((5, 5)))
  assert not found.counts and found.uncounted == 1
  assert matmuls.find(lambda a, b: a @ b, A, B).uncounted == 0


def test_floor_is_the_sum_over_runs():
  def function(x, y):
    for _ in range(3):
      x = x @ x
    return x, y @ y

  found = matmuls.find(function, jnp.ones((5, 5)), jnp.ones((2, 2)))
  each = {m: (10.0 if m.flop == 250 else 1.0) for m in found.counts}
  assert found.floor(each) == 31
  assert found.flop == 3 * 250 + 16
  # A part without products takes no time, in seconds.
  assert matmuls.Found().floor({}) == 0


@pytest.mark.parametrize('shape', [(3, 7, 5), (300, 20, 40)])
def test_program_gives_the_product(shape):
  rows, inner, columns = shape
  dims = ((0,), (0,)), ((), ())  # x.T @ y
  (matmul,) = matmuls.find(
    lambda x, y: jax.lax.dot_general(x, y, dims),
    jnp.ones((inner, rows)),
    jnp.ones((inner, columns)),
  ).counts
  program = matmuls.program(matmul)
  assert isinstance(program, functools.partial)
  x, y = (np.asarray(side) for side in program.args)
  np.testing.assert_allclose(program(), x.T @ y, rtol=1e-4, atol=1e-4)


def test_program_runs_the_product_every_time():
  """Its loop keeps the product inside; a compiler could take it out."""
  (matmul,) = matmuls.find(lambda a, b: a @ b, A, B).counts
  program = matmuls.program(matmul)
  text = program.func.lower(*program.args).compile().as_text()
  body = next(
    part
    for part in text.split('\n\n')
    if ' dot(' in part or 'custom-call' in part
  )
  assert not body.startswith('ENTRY')
