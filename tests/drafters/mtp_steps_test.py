# SPDX-License-Identifier: MIT
"""Rows of MTP's training can be drawn: each is what it is among all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec.drafters import anchors, base, mtp_loss
from jspec.testing import toy
from tests.drafters import small_mtp

LENGTH = 14


@pytest.fixture(scope='module')
def target():
  return toy.target()


def _batch(target):
  tokens = jnp.asarray(toy.prompts(2, LENGTH))
  segments = jnp.where(jnp.arange(LENGTH) < 8, 1, 2) * jnp.ones((2, 1), int)
  positions = jnp.arange(LENGTH) % 8 * jnp.ones((2, 1), int)
  answer = (jnp.arange(LENGTH) > 2) & (jnp.ones((2, 1)) > 0)
  shape = (2, LENGTH, 1, target.width)
  taps = np.random.default_rng(0).normal(size=shape)
  return base.DraftBatch(
    tokens, positions, segments, answer, jnp.asarray(taps, jnp.float32)
  )


@pytest.mark.few(1)
@pytest.mark.parametrize('on_policy', [False, True])
def test_a_row_alone_equals_the_row_among_all(target, on_policy):
  drafter = small_mtp.drafter(target, loss={'on_policy': on_policy})
  batch = _batch(target)
  rows = jnp.asarray([[1, 4, 9], [0, 8, 12]], jnp.int32)
  some = jax.jit(lambda d: d.train_hidden(batch, rows))(drafter)
  every = jax.jit(lambda d: d.train_hidden(batch))(drafter)
  np.testing.assert_allclose(some, anchors.gather(every, rows), atol=1e-5)


@pytest.mark.slow
def test_as_many_rows_as_there_are_give_the_loss_of_all(target):
  found = []
  for count in (0, LENGTH + 3):
    drafter = small_mtp.drafter(target, loss={'num_anchors': count})
    graph, params, rest = nnx.split(drafter, nnx.Param, ...)

    @jax.jit
    def grad(params, graph=graph, rest=rest):
      def value(params):
        model = nnx.merge(graph, params, rest)
        return model.loss(_batch(target), jax.random.key(0))

      return jax.value_and_grad(value, has_aux=True)(params)

    found.append(grad(params))
  (want, metrics), grads = found[0]
  (got, others), other_grads = found[1]
  np.testing.assert_allclose(got, want, rtol=1e-5)
  np.testing.assert_allclose(
    others['tokens_per_round'], metrics['tokens_per_round'], rtol=1e-5
  )
  for a, b in zip(
    jax.tree.leaves(other_grads), jax.tree.leaves(grads), strict=True
  ):
    np.testing.assert_allclose(a, b, atol=1e-5)


def test_drawn_rows_have_labels_and_depend_on_the_key(target):
  labels = mtp_loss.labels(_batch(target), None, 3)
  rows, found = mtp_loss.sample(labels, 4, jax.random.key(0))
  assert np.all(np.asarray(found.exists)[..., 0])
  assert np.all(np.diff(rows, axis=1) > 0)
  np.testing.assert_array_equal(
    found.columns, anchors.gather(labels.columns, rows)
  )
  other, _ = mtp_loss.sample(labels, 4, jax.random.key(1))
  assert np.any(np.asarray(rows) != np.asarray(other))
  none = labels._replace(exists=jnp.zeros_like(labels.exists))
  _, nothing = mtp_loss.sample(none, 4, jax.random.key(0))
  assert not np.any(nothing.exists)
