# SPDX-License-Identifier: MIT
"""Thresholds against sorting, with ties, and row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.decode import thresholds


def sorted_reference(z, w, target):
  """The smallest z with less than `target` weight above it, by sorting."""
  order = np.argsort(-z, kind='stable')
  z, w = z[order], w[order].astype(np.float64)
  above = np.array([w[: np.searchsorted(-z, -x)].sum() for x in z])
  return z[above < target].min()


@pytest.mark.parametrize('size', [1, 2, 7, 128, 501])
@pytest.mark.parametrize('kind', ['spread', 'tied', 'equal', 'geometric'])
def test_smallest_kept_equals_sorting(size, kind):
  rng = np.random.default_rng(size)
  z = {
    'spread': lambda: rng.normal(size=(6, size)) * 4,
    'tied': lambda: rng.integers(-3, 1, (6, size)),
    'equal': lambda: np.zeros((6, size)),
    # Bisection by value halves towards the top again and again here.
    'geometric': lambda: np.broadcast_to(
      -(2.0 ** -np.arange(size).clip(0, 120)), (6, size)
    ),
  }[kind]().astype(np.float32)
  w = rng.integers(0, 5, z.shape).astype(np.float32)
  target = rng.uniform(0.3, 0.9 * w.sum(1) + 0.5, 6).astype(np.float32)
  found = jax.jit(thresholds.smallest_kept)(z, w, target, np.ones(6, bool))
  expected = [sorted_reference(*row) for row in zip(z, w, target, strict=True)]
  np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_top_k_top_p_equals_every_row_alone_when_some_rows_need_everything():
  rng = np.random.default_rng(0)
  vocab = 128 * (thresholds.NUM_CANDIDATE_BLOCKS + 40) - 5
  scale = np.array([0.1, 6.0, 3.0, 6.0, 0.0, 6.0])[:, None]
  z = rng.normal(size=(6, vocab)).astype(np.float32) * scale
  z = (z - z.max(1, keepdims=True)).astype(np.float32)
  w = np.asarray(jnp.exp(z))
  # Wide nucleus, narrow nucleus, many tokens, few tokens, all tied, nothing.
  top_k = np.array([0, 0, 9000, 50, 5, 0], np.int32)
  top_p = np.array([0.95, 0.9, 0.9, 0.5, 0.5, 1.0], np.float32)
  f = jax.jit(thresholds.top_k_top_p)
  together = np.asarray(f(z, w, top_k, top_p))
  for b in range(6):
    alone = f(*(x[b : b + 1] for x in (z, w, top_k, top_p)))
    assert together[b] == alone[0]
  kept = (z >= together[:, None]).sum(1)
  assert kept[0] > 5000 and 1 < kept[1] < 1000 and 64 < kept[2] < 9000
  assert 1 <= kept[3] < 50 and kept[4] == vocab and together[5] == -np.inf


@pytest.mark.parametrize('size', [1, 2, 3, 6, 127, 300])
def test_fixed_sum_is_a_sum_and_the_same_in_any_batch(size):
  x = np.random.default_rng(size).uniform(size=(9, size)).astype(np.float32)
  f = jax.jit(thresholds.fixed_sum)
  together = np.asarray(f(x))
  np.testing.assert_allclose(together, x.sum(1, dtype=np.float64), rtol=1e-6)
  alone = [np.asarray(f(x[b : b + 1]))[0] for b in range(9)]
  np.testing.assert_array_equal(together, alone)
