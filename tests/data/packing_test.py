# SPDX-License-Identifier: MIT
"""Rows hold whole documents, each in a segment of its own."""

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.data import packing
from tests.train import tiny


def documents(lengths):
  rng = np.random.default_rng(0)
  return [
    {'tokens': rng.integers(8, tiny.VOCAB, (n,)).astype(np.int32)}
    for n in lengths
  ]


def test_row_is_laid_out_by_hand():
  row = packing.fill_row(
    [{'tokens': np.array([5, 6, 7])}, {'tokens': np.array([8, 9])}], 7
  )
  assert row['tokens'].tolist() == [5, 6, 7, 8, 9, 0, 0]
  assert row['segments'].tolist() == [1, 1, 1, 2, 2, 0, 0]
  assert row['positions'].tolist() == [0, 1, 2, 0, 1, 0, 0]


def test_every_document_is_in_one_row():
  lengths = np.random.default_rng(1).integers(1, 60, 200).tolist()
  rows = list(packing.first_fit(lengths, 64))
  assert sorted(n for row in rows for n in row) == list(range(200))
  assert max(sum(lengths[n] for n in row) for row in rows) <= 64
  assert rows == list(packing.first_fit(lengths, 64))
  # Little padding: the bound leaves room for one open set of rows.
  assert len(rows) <= sum(lengths) / 64 * 1.1 + 2


def test_long_document_is_refused():
  with pytest.raises(errors.UserError, match='65 tokens but a row has 64'):
    list(packing.first_fit([3, 65], 64))


def test_documents_do_not_see_each_other_when_packed():
  target = tiny.loaded().model
  parts = documents([7, 11, 5])
  row = packing.stack([packing.fill_row(parts, 24)], 1)
  encode = jax.jit(lambda *a: target.encode(*a, (0, 2)))
  packed = encode(row['tokens'], row['positions'], row['segments'])[1][0]
  start = 0
  for part in parts:
    length = len(part['tokens'])
    alone = packing.stack([packing.fill_row([part], 24)], 1)
    taps = encode(alone['tokens'], alone['positions'], alone['segments'])[1][0]
    np.testing.assert_allclose(
      packed[start : start + length], taps[:length], atol=1e-5
    )
    start += length
  # Control: with one segment for all, the second document changes.
  merged = np.where(row['segments'] > 0, 1, 0)
  leaky = encode(row['tokens'], row['positions'], merged)[1][0]
  assert np.abs(leaky[7:18] - packed[7:18]).max() > 1e-2
