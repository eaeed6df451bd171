# SPDX-License-Identifier: MIT
"""Fused matrices in the order of shards: parts come out whole, and apart."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import fused

WIDTHS = (12, 4, 4)


@pytest.mark.parametrize('num_shards', [1, 2, 4])
def test_parts_are_those_of_the_matrices_apart(num_shards):
  rng = np.random.default_rng(0)
  parts = [rng.normal(size=(2, 5, width)) for width in WIDTHS]
  x = rng.normal(size=(3, 5))
  whole = fused.interleave(np.concatenate(parts, -1), WIDTHS, num_shards)
  found = fused.split(jnp.asarray(x @ whole), WIDTHS, num_shards)
  for got, part in zip(found, parts, strict=True):
    np.testing.assert_allclose(got, x @ part, rtol=1e-5)


@pytest.mark.parametrize('num_shards', [2, 4])
def test_a_shard_holds_its_part_of_each_matrix_and_nothing_else(num_shards):
  names = np.concatenate(
    [100 * part + np.arange(width) for part, width in enumerate(WIDTHS)]
  )

  def shards(columns):
    return np.split(columns, num_shards)

  def expected(shard):
    return np.concatenate(
      [
        100 * part + np.split(np.arange(width), num_shards)[shard]
        for part, width in enumerate(WIDTHS)
      ]
    )

  found = shards(fused.interleave(names, WIDTHS, num_shards))
  for shard in range(num_shards):
    np.testing.assert_array_equal(found[shard], expected(shard))
  # The control: cut as it is, the first shard holds queries alone.
  assert not np.array_equal(shards(names)[0], expected(0))


@pytest.mark.parametrize('num_shards', [1, 2, 4])
def test_spans_lead_back_to_the_columns(num_shards):
  widths = (8, 4, 12)
  there = fused.interleave(np.arange(24), widths, num_shards)
  for start in range(24):
    for stop in range(start + 1, 25):
      spans = fused.spans(widths, num_shards, start, stop)
      found = np.concatenate([np.arange(*span) for span in spans])
      np.testing.assert_array_equal(found, there[start:stop])


def test_a_shard_is_a_run_of_each_part():
  assert fused.spans((8, 4, 4), 2, 0, 8) == [(0, 4), (8, 10), (12, 14)]
