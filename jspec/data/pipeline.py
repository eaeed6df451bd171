# SPDX-License-Identifier: MIT
"""The training stream: draw, pack, read, batch; resumable anywhere.

  order (mixture) -> first fit by length -> rows of a batch -> read, lay out
  `- the same on all processes ------------------------'   only a process' rows

Packing needs lengths alone, so every process knows all rows of a batch and
reads the documents of its own. The iterator's state is a small JSON object: how
many documents were drawn, and the rows that are open. Restored, on any number
of processes, it goes on with the very next batch, mid-epoch or mid-packing.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from jspec import errors
from jspec.data import ahead, examples, mixture, packing

# Batches read while the device works; a batch of taps may be large.
_AHEAD = 2


class Documents:
  """Documents without taps as a random access source (online training)."""

  def __init__(self, documents: Sequence[examples.Document]):
    self.documents = documents

  def __len__(self) -> int:
    return len(self.documents)

  def __getitem__(self, number: int) -> dict[str, np.ndarray]:
    document = self.documents[number]
    return {'tokens': document.tokens, 'is_answer': document.is_answer}


def training(
  source: Any,
  numbers: Sequence[int],
  *,
  row_len: int,
  num_rows: int,
  seed: int,
  domains: Sequence[str] | None = None,
  weights: Mapping[str, float] | None = None,
  process: tuple[int, int] = (0, 1),
  **reading: Any,
) -> ahead.Ahead:
  """Streams batches for ever.

  Args:
    source: `features.Store` or `Documents`.
    numbers: which documents to use.
    row_len: tokens in a row.
    num_rows: rows in a batch, over all processes.
    seed: fixes the order of every epoch.
    domains: of the documents that `numbers` names; needed with weights.
    weights: of the domains (`mixture.order`).
    process: index of this process and how many there are; each reads its share
      of the rows, in their order.
    **reading: of the thread that reads ahead (`ahead.Ahead`).

  Returns:
    An iterator over dicts of arrays [rows, row_len, ...] named `tokens`,
    `is_answer`, `segments`, `positions` and, from a store, `taps`; with
    `get_state` and `set_state`, and `close`, which ends its thread. States are
    the same on all processes.
  """
  index, num_processes = process
  if num_rows % num_processes:
    raise errors.UserError(
      f'data.num_rows is {num_rows} but there are {num_processes} processes:'
      ' make it a multiple'
    )
  share = num_rows // num_processes
  ours = slice(index * share, (index + 1) * share)

  def read(rows):
    filled = [
      packing.fill_row([source[number] for number in row], row_len)
      for row in rows[ours]
    ]
    return packing.stack(filled, share)

  planned = plan(
    source,
    numbers,
    row_len=row_len,
    num_rows=num_rows,
    seed=seed,
    domains=domains,
    weights=weights,
  )
  return ahead.Ahead(iter(planned.map(read)), _AHEAD, **reading)


def plan(
  source: Any,
  numbers: Sequence[int],
  *,
  row_len: int,
  num_rows: int,
  seed: int,
  domains: Sequence[str] | None = None,
  weights: Mapping[str, float] | None = None,
) -> grain.IterDataset:
  """Which documents lie in the rows of each batch; takes what `training` does.

  Returns:
    An endless data set; an element is a list of rows, each a list of document
    numbers.

  Raises:
    UserError: no document, one that is longer than a row, or weights that do
      not fit the domains.
  """
  if not numbers:
    raise errors.UserError('no document is left to train on: add answers')
  longest = max(len(source.documents[number]) for number in numbers)
  if longest > row_len:
    raise errors.UserError(
      f'a document has {longest} tokens but data.row_len is {row_len}: raise '
      'data.row_len or lower data.max_len'
    )
  return _Plan(
    functools.partial(
      mixture.Order, numbers, seed=seed, domains=domains, weights=weights
    ),
    [len(document) for document in source.documents],
    row_len,
    num_rows,
  )


def held_out(
  source: Any,
  numbers: Sequence[int],
  *,
  row_len: int,
  num_rows: int,
  max_batches: int,
) -> list[dict[str, np.ndarray]]:
  """Packs documents in fixed batches, the same in every call and run."""
  lengths = [len(source.documents[number]) for number in numbers]
  rows = list(packing.first_fit(lengths, row_len))[: max_batches * num_rows]
  batches = []
  for start in range(0, len(rows), num_rows):
    chunk = [
      packing.fill_row([source[numbers[n]] for n in row], row_len)
      for row in rows[start : start + num_rows]
    ]
    batches.append(packing.stack(chunk, num_rows))
  return batches


class _Plan(grain.IterDataset):
  """The rows of each batch, as lists of document numbers."""

  def __init__(self, make_order, lengths, row_len, num_rows):
    super().__init__()
    make_order()  # Refuses what does not fit now, not at the first batch.
    self.make_order = make_order
    self.lengths = lengths
    self.row_len = row_len
    self.num_rows = num_rows

  def __iter__(self):
    return _PlanIterator(self)


class _PlanIterator(grain.DatasetIterator):
  """Draws documents until enough rows are full."""

  def __init__(self, plan):
    super().__init__()
    self._plan = plan
    self._order = plan.make_order()
    self._open = packing.FirstFit(plan.row_len)

  def __next__(self):
    rows = []
    while len(rows) < self._plan.num_rows:
      number = self._order.draw()
      row = self._open.add(number, self._plan.lengths[number])
      if row is not None:
        rows.append(row)
    return rows

  def get_state(self):
    return {
      'drawn': dict(self._order.drawn),
      'open': [list(row) for row in self._open.rows],
    }

  def set_state(self, state):
    if not isinstance(state, dict) or state.keys() != {'drawn', 'open'}:
      raise errors.UserError(
        'the checkpoint holds the place in a data stream of another version of'
        ' jspec: go on with that version, or start anew in another --workdir'
      )
    self._order.drawn = dict(state['drawn'])
    self._open.restore(state['open'], self._plan.lengths)
