# SPDX-License-Identifier: MIT
"""Rotations: relative positions only, and each scaling at its edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import rope


def test_scores_depend_on_the_distance_only():
  config = rope.RopeConfig(base=1e4)
  q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 32))

  def score(i, j):
    def rotate(x, p):
      return rope.rotate(x, jnp.array([[p]]), config)

    return float(jnp.sum(rotate(q, i) * rotate(k, j)))

  assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-4)
  assert abs(score(9, 4) - score(9, 5)) > 1e-2


def test_llama3_scaling_keeps_fast_planes_and_slows_the_others():
  plain = rope.inverse_frequencies(rope.RopeConfig(base=5e5), 128)
  scaled = rope.inverse_frequencies(
    rope.RopeConfig(base=5e5, kind='llama3', factor=8.0, original_max_len=8192),
    128,
  )
  wavelength = 2 * np.pi / plain
  fast, slow = wavelength < 8192 / 4, wavelength > 8192
  np.testing.assert_allclose(scaled[fast], plain[fast], rtol=1e-6)
  np.testing.assert_allclose(scaled[slow], plain[slow] / 8, rtol=1e-6)
  between = ~fast & ~slow
  assert between.any()
  assert np.all(scaled[between] < plain[between])
  assert np.all(scaled[between] > plain[between] / 8)


def test_linear_scaling_divides_and_yarn_lengthens():
  plain = rope.inverse_frequencies(rope.RopeConfig(), 16)
  linear = rope.RopeConfig(kind='linear', factor=4.0)
  np.testing.assert_allclose(
    rope.inverse_frequencies(linear, 16), plain / 4, rtol=1e-6
  )
  assert rope.amplitude(linear) == 1.0
  yarn = rope.RopeConfig(kind='yarn', factor=4.0, original_max_len=32)
  assert rope.amplitude(yarn) == pytest.approx(0.1 * np.log(4) + 1)


def test_unknown_scaling_is_refused():
  with pytest.raises(ValueError, match='longrope'):
    rope.inverse_frequencies(rope.RopeConfig(kind='longrope'), 16)
