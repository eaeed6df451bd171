# SPDX-License-Identifier: MIT
"""Packs documents into rows of one length.

  documents  aaa bb cccc dd       rows of 6   aaabb.   ccccdd
  segments                                    111220   111122
  positions                                   012010   012301

First fit over a few open rows, in the order given: the same documents in the
same order give the same rows. A document never crosses a row, and `segments`
keeps attention, anchors and labels inside it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jspec import errors

# Rows open at the same time: more leave less padding and hold more memory.
OPEN_ROWS = 16


class FirstFit:
  """Fills rows as documents come.

  Attributes:
    rows: document numbers of the open rows.
  """

  def __init__(self, row_len: int, open_rows: int = OPEN_ROWS):
    self.rows: list[list[int]] = []
    self._used: list[int] = []
    self._row_len = row_len
    self._open_rows = open_rows

  def add(self, number: int, length: int) -> list[int] | None:
    """Takes a document; returns the row that had to give way for it, if any.

    A full set of open rows gives up its fullest row when a document fits in
    none.
    """
    if length > self._row_len:
      raise errors.UserError(
        f'document {number} has {length} tokens but a row has {self._row_len}:'
        ' raise data.row_len or lower data.max_len'
      )
    slot = next(
      (i for i, n in enumerate(self._used) if n + length <= self._row_len), None
    )
    done = None
    if slot is None and len(self.rows) == self._open_rows:
      fullest = max(range(self._open_rows), key=self._used.__getitem__)
      done = self.rows.pop(fullest)
      self._used.pop(fullest)
    if slot is None:
      self.rows.append([])
      self._used.append(0)
      slot = -1
    self.rows[slot].append(number)
    self._used[slot] += length
    return done

  def restore(self, rows: Sequence[Sequence[int]], lengths: Any) -> None:
    """Opens the rows of another `FirstFit`; `lengths[number]` is a length."""
    self.rows = [list(row) for row in rows]
    self._used = [sum(lengths[n] for n in row) for row in self.rows]


def first_fit(
  lengths: Iterable[int], row_len: int, open_rows: int = OPEN_ROWS
) -> Iterator[list[int]]:
  """Yields the document numbers of each row, see `FirstFit`."""
  rows = FirstFit(row_len, open_rows)
  for number, length in enumerate(lengths):
    done = rows.add(number, length)
    if done is not None:
      yield done
  yield from rows.rows


def fill_row(
  documents: Sequence[dict[str, np.ndarray]], row_len: int
) -> dict[str, np.ndarray]:
  """Lays documents behind each other; adds `segments` and `positions`.

  Args:
    documents: feature name -> array [S, ...], the same names in each.
    row_len: length of the row; what is left over is zero.

  Returns:
    Each feature as [row_len, ...], int32 `segments` (from 1; 0 is padding) and
    int32 `positions` inside the document.
  """
  row: dict[str, Any] = {
    name: np.zeros((row_len, *value.shape[1:]), value.dtype)
    for name, value in documents[0].items()
  }
  row['segments'] = np.zeros((row_len,), np.int32)
  row['positions'] = np.zeros((row_len,), np.int32)
  start = 0
  for number, document in enumerate(documents):
    length = len(document['tokens'])
    span = slice(start, start + length)
    for name, value in document.items():
      row[name][span] = value
    row['segments'][span] = number + 1
    row['positions'][span] = np.arange(length)
    start += length
  return row


def stack(
  rows: Sequence[dict[str, np.ndarray]], num_rows: int
) -> dict[str, np.ndarray]:
  """Stacks rows to a batch of `num_rows`; missing rows are padding."""
  batch = {}
  for name, first in rows[0].items():
    batch[name] = np.zeros((num_rows, *first.shape), first.dtype)
    for index, row in enumerate(rows):
      batch[name][index] = row[name]
  return batch
