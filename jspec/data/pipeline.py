# SPDX-License-Identifier: MIT
"""The training stream: shuffle per epoch, pack, batch; resumable anywhere.

  source -> shuffle (seed, epoch) -> first fit in rows -> batch of rows

The iterator's state is a small JSON object; restored, it goes on with the very
next batch, mid-epoch or mid-packing.
"""

from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from jspec import errors
from jspec.data import examples, packing

_COLUMNS = ('tokens', 'is_answer', 'taps')


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
) -> grain.DatasetIterator:
  """Streams batches for ever.

  Args:
    source: `features.Store` or `Documents`.
    numbers: which documents to use.
    row_len: tokens in a row.
    num_rows: rows in a batch.
    seed: fixes the order of every epoch.

  Returns:
    An iterator over dicts of arrays [num_rows, row_len, ...] named `tokens`,
    `is_answer`, `segments`, `positions` and, from a store, `taps`; with
    `get_state` and `set_state`.
  """
  if not numbers:
    raise errors.UserError('no document is left to train on: add answers')
  longest = max(len(source.documents[number]) for number in numbers)
  if longest > row_len:
    raise errors.UserError(
      f'a document has {longest} tokens but data.row_len is {row_len}: raise '
      'data.row_len or lower data.max_len'
    )
  columns = _COLUMNS if hasattr(source, 'settings') else _COLUMNS[:2]
  documents = (
    grain.MapDataset.source(_Subset(source, numbers))
    .seed(seed)
    .shuffle()
    .repeat(None)
    # Two readers keep up; the default buffer would hold 500 documents' taps.
    .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))
  )
  packed = grain.experimental.FirstFitPackIterDataset(
    documents,
    length_struct=dict.fromkeys(columns, row_len),
    num_packing_bins=packing.OPEN_ROWS,
    shuffle_bins=False,
    meta_features=columns[1:],
  )
  return iter(packed.batch(num_rows, drop_remainder=True).map(_rename))


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


class _Subset:
  """Some of a source's documents, in the order given."""

  def __init__(self, source, numbers):
    self._source = source
    self._numbers = list(numbers)

  def __len__(self):
    return len(self._numbers)

  def __getitem__(self, index):
    return self._source[self._numbers[index]]

  def __repr__(self):
    return f'_Subset({len(self._numbers)} documents)'


def _rename(batch):
  batch = dict(batch)
  batch['segments'] = batch.pop('tokens_segment_ids')
  batch['positions'] = batch.pop('tokens_positions')
  return batch
