# SPDX-License-Identifier: MIT
"""A row's epoch tells a late result from a current one."""

import pytest

from jspec.serve import rows


def test_epoch_ends_when_the_row_is_freed():
  table = rows.Rows(2)
  assert (table.take(), table.take(), table.num_free) == (0, 1, 0)
  epoch = table.epoch(0)
  assert table.is_current(0, epoch)
  table.release(0)
  assert not table.is_current(0, epoch)
  assert table.take() == 0
  assert not table.is_current(0, epoch) and table.epoch(0) == epoch + 1
  assert table.is_current(1, 0)


def test_free_row_cannot_be_released():
  with pytest.raises(ValueError, match='row 1 released, but it is free'):
    rows.Rows(2).release(1)
