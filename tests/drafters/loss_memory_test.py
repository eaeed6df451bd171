# SPDX-License-Identifier: MIT
"""With chunks of columns the loss is the same and its scratch has one size."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors
from jspec.drafters import objective
from tests.drafters import every_method

ROWS, ANCHORS, SLOTS, WIDTH = 2, 8, 4, 16
SHAPE = (ROWS, ANCHORS, SLOTS)


def value_and_grad(mix):
  """The loss by the slots' states, the head frozen."""

  def loss(hidden, head, labels, teacher):
    exists = jnp.ones(SHAPE, bool)
    given = {}
    if mix.needs_teacher:
      given = {'teacher_hidden': teacher, 'teacher_head': head}
    return objective.compute(mix, hidden, head, labels, exists, **given)[0]

  return jax.value_and_grad(loss)


def scratch(mix, vocab_size):
  """Bytes that the compiled loss and gradient need besides their arguments."""
  states = jax.ShapeDtypeStruct((*SHAPE, WIDTH), jnp.float32)
  head = jax.ShapeDtypeStruct((WIDTH, vocab_size), jnp.float32)
  labels = jax.ShapeDtypeStruct(SHAPE, jnp.int32)
  lowered = jax.jit(value_and_grad(mix)).lower(states, head, labels, states)
  return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
  'term', ['ce', pytest.param('kl', marks=pytest.mark.slow)]
)
def test_scratch_does_not_grow_with_the_vocabulary(term):
  mix = objective.Mix(**{'ce': 0.0, term: 1.0}, chunk=8, vocab_chunk=512)
  small, large = (scratch(mix, size) for size in (2048, 16384))
  assert large < 1.1 * small
  # It would, where all columns exist at once.
  whole = dataclasses.replace(mix, vocab_chunk=0)
  small, large = (scratch(whole, size) for size in (2048, 16384))
  assert large > 4 * small


@pytest.mark.slow
def test_chunks_of_columns_change_nothing():
  rng = np.random.default_rng(0)
  states, teacher = (
    jnp.asarray(rng.normal(size=(*SHAPE, WIDTH)), jnp.float32) for _ in 'ab'
  )
  head = jnp.asarray(rng.normal(size=(WIDTH, 50)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, 50, SHAPE), jnp.int32)
  found = [
    jax.jit(
      value_and_grad(objective.Mix(**every_method.MIX, vocab_chunk=size))
    )(states, head, labels, teacher)
    for size in (0, 7)
  ]
  (loss, grad), (other, other_grad) = found
  np.testing.assert_allclose(loss, other, rtol=1e-5)
  np.testing.assert_allclose(grad, other_grad, rtol=1e-4, atol=1e-6)


def test_fewer_columns_than_none_are_refused():
  with pytest.raises(errors.UserError, match='vocab_chunk=-1'):
    objective.Mix(vocab_chunk=-1)
