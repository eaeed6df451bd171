# SPDX-License-Identifier: MIT
"""The rank head: labels, features, and its loss written out over lists."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.drafters import rank_head


@pytest.mark.parametrize(
  'rank, label',
  [(1, 0), (2, 1), (4, 1), (5, 2), (10, 2), (11, 3), (20, 3), (21, 3)],
)
def test_labels_are_buckets_of_the_rank(rank, label):
  ranked = jnp.arange(100, 120)
  assert rank_head.labels(ranked, jnp.int32(99 + rank)) == label


def test_soft_targets_lean_to_overestimates():
  found = np.asarray(rank_head.soft_targets())
  np.testing.assert_allclose(
    found[1], [0.0755, 0.6792, 0.1698, 0.0755], atol=1e-4
  )
  raw = np.array([1 / 49, 1 / 25, 1 / 9, 1])
  np.testing.assert_allclose(found[3], raw / raw.sum(), rtol=1e-6)
  np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
  assert found[1, 2] > found[1, 0]


def test_features_are_of_the_twenty_largest_logits():
  rng = np.random.default_rng(0)
  logits = np.sort(rng.normal(size=(2, 20)) * 2)[:, ::-1]
  found = np.asarray(rank_head.features(jnp.asarray(logits, jnp.float32)))
  p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
  expected = [
    np.log(p[:, :10]),
    (logits[:, :1] - logits[:, [1, 2, 4]]),
    p[:, :1],
    -(p * np.log(p)).sum(axis=1, keepdims=True),
  ]
  assert found.shape == (2, rank_head.NUM_FEATURES)
  np.testing.assert_allclose(found, np.concatenate(expected, 1), rtol=1e-4)
  shifted = rank_head.features(jnp.asarray(logits - 7, jnp.float32))
  np.testing.assert_allclose(found, shifted, atol=1e-5)
  impossible = np.where(np.arange(20) < 3, logits, -np.inf)
  assert np.all(np.isfinite(rank_head.features(jnp.asarray(impossible))))


def test_head_gives_no_gradient_to_what_it_reads():
  rng = np.random.default_rng(1)
  normed = jnp.asarray(rng.normal(size=(3, 6)), jnp.float32)
  largest = jnp.asarray(np.sort(rng.normal(size=(3, 20)))[:, ::-1], jnp.float32)
  inner = jnp.asarray(rng.normal(size=(21, 8)), jnp.float32)
  outer = jnp.asarray(rng.normal(size=(8, 4)), jnp.float32)

  def total(normed, largest, inner, outer):
    found = rank_head.features(largest)
    return jnp.sum(jnp.square(rank_head.scores(normed, found, inner, outer)))

  grads = jax.grad(total, argnums=(0, 1, 2, 3))(normed, largest, inner, outer)
  sizes = [float(jnp.max(jnp.abs(grad))) for grad in grads]
  assert sizes[0] == sizes[1] == 0 < min(sizes[2:])


def _by_hand(logits, classes, exists):
  """The loss, row by row, slot by slot."""
  batch, rows, slots, _ = logits.shape
  counted, seen = [], {}
  for b in range(batch):
    for a in range(rows):
      for k in range(slots):
        if not exists[b, a, k]:
          break
        t, c = int(classes[b, a, k]), int(logits[b, a, k].argmax())
        counted.append((b, a, k, t, c))
        seen[k, t] = seen.get((k, t), 0) + 1
        if c != t:
          break
  total = weight = 0.0
  for b, a, k, t, c in counted:
    raw = [1 / (1 + abs(x - t) + max(t - x, 0)) ** 2 for x in range(4)]
    soft = np.array(raw) / sum(raw)
    logq = logits[b, a, k] - np.log(np.exp(logits[b, a, k]).sum())
    share = min(1.0, 10 / seen[k, t])
    total += -(soft * logq).sum() * (1 + abs(t - c) + max(t - c, 0)) * share
    weight += share
  return total / weight, len(counted), max(seen.values())


def test_loss_equals_the_description():
  rng = np.random.default_rng(2)
  logits = rng.normal(size=(2, 40, 3, 4))
  classes = rng.integers(0, 4, (2, 40, 3))
  # Right often enough for later slots to train, in some classes over 10 times.
  is_right = rng.random((2, 40, 3, 1)) < 0.7
  logits += 4 * is_right * np.eye(4)[classes]
  exists = rng.random((2, 40, 3)) < 0.9
  expected, num, most = _by_hand(logits, classes, exists)
  assert most > 10, 'no class is frequent: the weights are not tested'
  loss, metrics = rank_head.loss(
    jnp.asarray(logits, jnp.float32),
    jnp.asarray(classes, jnp.int32),
    jnp.asarray(exists),
  )
  np.testing.assert_allclose(loss, expected, rtol=1e-5)
  assert metrics['num_ranked'].sum() == num
  nothing, _ = rank_head.loss(
    jnp.asarray(logits, jnp.float32),
    jnp.asarray(classes, jnp.int32),
    jnp.zeros_like(exists),
  )
  assert nothing == 0


def test_slot_behind_a_wrong_class_has_no_gradient():
  rng = np.random.default_rng(3)
  classes = jnp.asarray([[[0, 1, 2, 3]]], jnp.int32)
  logits = np.asarray(rng.normal(size=(1, 1, 4, 4)) * 0.1, np.float32)
  logits[0, 0, 0, 0] = logits[0, 0, 1, 3] = 3  # Right, then wrong.
  grad = jax.grad(lambda x: rank_head.loss(x, classes, classes >= 0)[0])(
    jnp.asarray(logits)
  )
  moved = np.abs(np.asarray(grad)).max(axis=(0, 1, 3)) > 0
  np.testing.assert_array_equal(moved, [True, True, False, False])
