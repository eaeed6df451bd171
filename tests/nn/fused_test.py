# SPDX-License-Identifier: MIT
"""Columns of an interleaved matrix are found where they came from."""

import numpy as np
import pytest

from jspec.nn import fused


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
