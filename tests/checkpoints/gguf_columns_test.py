# SPDX-License-Identifier: MIT
"""Columns decoded from blocks are the package's rows, turned, to the bit."""

import gguf as gguf_package
import numpy as np
import pytest

from jspec.checkpoints import gguf_columns

TYPE = gguf_package.GGMLQuantizationType


def stored(kind, shape):
  """Random bytes, whose scales are numbers."""
  numbers, size = gguf_package.GGML_QUANT_SIZES[TYPE[kind]]
  rng = np.random.default_rng(0)
  blocks = shape[0], shape[1] // numbers, size
  data = rng.integers(0, 256, blocks).astype(np.uint8)
  halves = rng.normal(size=(*blocks[:2], 2)).astype(np.float16)
  data[..., :4] = halves.view(np.uint8)
  return data.reshape(shape[0], -1)


@pytest.mark.parametrize('num_rows', [1, 31, 300])
@pytest.mark.parametrize('kind', gguf_columns.KINDS)
def test_columns_are_the_packages_rows(kind, num_rows, monkeypatch):
  monkeypatch.setattr(gguf_columns, '_PART_BYTES', 1 << 12)
  data = stored(kind, (num_rows, 96))
  want = gguf_package.quants.dequantize(data, TYPE[kind])
  # Beside other columns, as one of several matrices.
  out = np.full((96, num_rows + 5), np.nan, np.float32)
  gguf_columns.write(data, kind, out[:, 3:-2])
  np.testing.assert_array_equal(out[:, 3:-2], want.T)
  assert np.isnan(out[:, :3]).all() and np.isnan(out[:, -2:]).all()
