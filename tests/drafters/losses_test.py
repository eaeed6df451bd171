# SPDX-License-Identifier: MIT
"""Cross-entropy: against the reference, and chunked against unchunked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import anchors, losses, objective
from tests import shared_data


def _cross_entropy(hidden, head, labels, chunk):
  rows = objective.slot_rows(objective.Mix(chunk=chunk), hidden, head, labels)
  return rows['ce'], rows['is_hit']


@pytest.mark.parametrize(
  'name, gamma', [('ce_decay_g4', 4.0), ('ce_nodecay', 0.0)]
)
def test_loss_equals_the_reference_in_value_and_gradient(name, gamma):
  golden = np.load(shared_data.path('goldens/losses/dflash_tail.npz'))
  at = anchors.Anchors(
    jnp.asarray(golden['anchors']), jnp.asarray(golden['keep_mask'])
  )
  tokens = jnp.asarray(golden['input_ids'])
  index, mask = anchors.label_index(at, 3, tokens.shape[1])
  # The reference masks slot by slot; a hole does not end the block there.
  mask &= anchors.gather(jnp.asarray(golden['loss_mask'] > 0.5), index)
  weights = mask * losses.decay_weights(3, gamma)

  def loss(hidden):
    slots = hidden.reshape(2, 4, 4, 16)[:, :, 1:]
    ce, is_hit = _cross_entropy(
      slots,
      jnp.asarray(golden['lm_head']).T,
      anchors.gather(tokens, index),
      3,
    )
    return losses.weighted_mean(ce, weights), (ce, is_hit)

  with jax.default_matmul_precision('highest'):
    (value, (ce, is_hit)), grad = jax.jit(
      jax.value_and_grad(loss, has_aux=True)
    )(jnp.asarray(golden['draft_hidden']))
  np.testing.assert_allclose(value, golden[f'{name}__loss'], atol=1e-4)
  np.testing.assert_allclose(
    grad, golden[f'{name}__grad_draft_hidden'], atol=1e-5
  )
  mask = np.asarray(mask)
  count = np.sum(mask, axis=(0, 1))
  np.testing.assert_array_equal(
    count, golden[f'{name}__count_per_position'][1:]
  )
  for values, key in ((ce, 'loss'), (is_hit, 'acc')):
    np.testing.assert_allclose(
      np.sum(np.asarray(values) * mask, axis=(0, 1)) / count,
      golden[f'{name}__{key}_per_position'][1:],
      atol=1e-4,
    )


@pytest.mark.parametrize('chunk', [1, 3, 5, 64])
def test_chunked_equals_unchunked_in_value_and_gradient(chunk):
  rng = np.random.default_rng(0)
  hidden = np.asarray(rng.normal(size=(2, 5, 3, 8)), np.float32)
  head = jnp.asarray(rng.normal(size=(8, 33)), jnp.float32)
  labels = jnp.asarray(rng.integers(0, 33, (2, 5, 3)))
  weights = jnp.asarray(rng.uniform(size=(2, 5, 3)), jnp.float32)

  def chunked(hidden):
    ce, _ = _cross_entropy(hidden, head, labels, chunk)
    return losses.weighted_mean(ce, weights)

  def unchunked(hidden):
    logp = jax.nn.log_softmax(hidden @ head)
    ce = -jnp.take_along_axis(logp, labels[..., None], axis=-1)[..., 0]
    return losses.weighted_mean(ce, weights)

  with jax.default_matmul_precision('highest'):
    got = jax.jit(jax.value_and_grad(chunked))(hidden)
    want = jax.jit(jax.value_and_grad(unchunked))(hidden)
  np.testing.assert_allclose(got[0], want[0], rtol=1e-6)
  np.testing.assert_allclose(got[1], want[1], atol=1e-6)
  assert np.abs(want[1]).max() > 1e-3


def test_cross_entropy_holds_no_more_than_one_chunk_of_logits():
  hidden = jax.ShapeDtypeStruct((2, 64, 7, 8), jnp.float32)
  head = jax.ShapeDtypeStruct((8, 4096), jnp.float32)
  labels = jax.ShapeDtypeStruct((2, 64, 7), jnp.int32)

  def peak(chunk):
    def loss(hidden, head, labels):
      return _cross_entropy(hidden, head, labels, chunk)[0].sum()

    compiled = jax.jit(jax.grad(loss)).lower(hidden, head, labels).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  full = 2 * 64 * 7 * 4096 * 4
  assert peak(4) < full / 4
  assert peak(64) >= full


def test_acceptance_names_joint_and_conditional_apart():
  # 5 blocks: depth 1 hits in 4 of them, depth 2 in 2 of these 4 and in the one
  # where depth 1 missed.
  is_hit = jnp.asarray([[[1, 1], [1, 1], [1, 0], [1, 0], [0, 1]]], bool)
  metrics = jax.jit(losses.acceptance)(is_hit, jnp.ones_like(is_hit))
  np.testing.assert_allclose(metrics['accuracy'], [0.8, 0.6])
  np.testing.assert_allclose(metrics['joint_accuracy'], [0.8, 0.4])
  np.testing.assert_allclose(metrics['conditional_accuracy'], [0.8, 0.5])
  np.testing.assert_allclose(metrics['tokens_per_round'], 1 + 0.8 + 0.4)


def test_mean_is_zero_without_weight():
  value, grad = jax.value_and_grad(losses.weighted_mean)(
    jnp.ones(3), jnp.zeros(3)
  )
  assert value == 0 and np.all(grad == 0)


def test_decay_weights_fall_from_one():
  np.testing.assert_allclose(
    losses.decay_weights(3, 4.0), np.exp([0, -0.25, -0.5]), rtol=1e-6
  )
  np.testing.assert_array_equal(losses.decay_weights(3, 0.0), 1)
