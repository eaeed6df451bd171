# SPDX-License-Identifier: MIT
"""The stream goes on, after any batch, with the very next one."""

import json
import threading

import numpy as np
import pytest

from jspec import errors
from jspec.data import examples, pipeline


def source(count=40):
  rng = np.random.default_rng(0)
  return pipeline.Documents(
    [
      examples.Document(
        f'd{i}', np.full((n,), i + 1, np.int32), np.ones((n,), bool)
      )
      for i, n in enumerate(rng.integers(2, 14, count))
    ]
  )


# What a test has opened, for it to be closed.
OPENED = []


@pytest.fixture(autouse=True)
def closed():
  """Ends the threads that read ahead."""
  yield
  while OPENED:
    OPENED.pop().close()


def opened(batches):
  OPENED.append(batches)
  return batches


def stream(seed=0, numbers=range(40), num_rows=2, **changes):
  return opened(
    pipeline.training(
      source(),
      list(numbers),
      row_len=16,
      num_rows=num_rows,
      seed=seed,
      **changes,
    )
  )


def take(batches, count):
  return [next(batches) for _ in range(count)]


def equal(a, b):
  return all(
    np.array_equal(x[name], y[name])
    for x, y in zip(a, b, strict=True)
    for name in x
  )


@pytest.mark.parametrize('stop', [0, 1, 5, 11, 30])
def test_resume_is_exact_mid_epoch(stop):
  whole = take(stream(), 40)
  batches = stream()
  take(batches, stop)
  state = json.loads(json.dumps(batches.get_state()))
  resumed = stream()
  resumed.set_state(state)
  assert equal(take(resumed, 40 - stop), whole[stop:])


@pytest.mark.parametrize('before, after', [(1, 2), (2, 4), (4, 1)])
def test_resume_is_exact_on_another_number_of_processes(before, after):
  weights = {
    'domains': ['a' if n % 3 else 'b' for n in range(40)],
    'weights': {'a': 1.0, 'b': 2.0},
  }
  whole = take(stream(num_rows=4, **weights), 30)

  def streams(num):
    return [stream(num_rows=4, process=(i, num), **weights) for i in range(num)]

  def together(parts):
    found = [next(part) for part in parts]
    return {
      name: np.concatenate([batch[name] for batch in found])
      for name in found[0]
    }

  first = streams(before)
  assert equal([together(first) for _ in range(13)], whole[:13])
  states = [json.dumps(part.get_state()) for part in first]
  assert len(set(states)) == 1
  second = streams(after)
  for part in second:
    part.set_state(json.loads(states[0]))
  assert equal([together(second) for _ in range(17)], whole[13:])


def test_a_process_reads_its_own_rows_alone():
  reads = []

  class Counted(pipeline.Documents):
    def __getitem__(self, number):
      reads.append(number)
      return super().__getitem__(number)

  batches = opened(
    pipeline.training(
      Counted(source().documents),
      list(range(40)),
      row_len=16,
      num_rows=4,
      seed=0,
      process=(1, 4),
    )
  )
  tokens = np.concatenate([b['tokens'] for b in take(batches, 5)])
  shown = {int(n) for n in np.unique(tokens)} - {0}
  # What is read ahead may be more.
  assert shown <= {n + 1 for n in reads} and len(reads) < 40


@pytest.mark.parametrize(
  'changes, said',
  [
    ({'process': (0, 3)}, '3 processes'),
    ({'weights': {'a': 1.0}, 'domains': ['a', 'b'] * 20}, 'no `b`'),
    (
      {'weights': {'a': 1.0, 'c': 1.0}, 'domains': ['a'] * 40},
      'names `c`',
    ),
  ],
)
def test_mixture_or_processes_that_do_not_fit(changes, said):
  with pytest.raises(errors.UserError, match=said):
    stream(**changes)


def test_state_of_another_version_is_refused():
  with pytest.raises(errors.UserError, match='another version'):
    batches = stream()
    batches.set_state({'parent': {'next_index': 3}})
    next(batches)


def test_what_reading_raises_comes_out_of_the_stream():
  class Damaged(pipeline.Documents):
    def __getitem__(self, number):
      raise errors.UserError(f'record {number} is damaged')

  batches = opened(
    pipeline.training(
      Damaged(source().documents), [1, 2], row_len=16, num_rows=2, seed=0
    )
  )
  with pytest.raises(errors.UserError, match='is damaged'):
    next(batches)


def test_closing_ends_the_thread_that_reads_ahead():
  before = threading.active_count()
  batches = stream()
  next(batches)
  assert threading.active_count() > before
  batches.close()
  assert threading.active_count() == before


def test_epochs_differ_and_seeds_differ():
  batches = take(stream(), 60)
  seen = np.concatenate([b['tokens'].ravel() for b in batches])
  order = seen[np.flatnonzero(np.diff(seen, prepend=0))]
  order = order[order > 0]
  assert order[:40].tolist() != order[40:80].tolist()
  assert not equal(batches[:5], take(stream(seed=1), 5))


def test_each_document_comes_once_an_epoch():
  batches = stream()
  seen = []
  while len(seen) < 40 * 3:
    batch = next(batches)
    for row, segments in zip(batch['tokens'], batch['segments'], strict=True):
      for segment in range(1, segments.max() + 1):
        seen.append(int(row[segments == segment][0]))
  counts = np.bincount(seen, minlength=41)[1:]
  # The last batches may hold the beginning of a fourth epoch.
  assert counts.min() >= 2 and counts.max() <= 4


def test_batches_name_segments_and_positions():
  batch = next(stream())
  assert set(batch) == {'tokens', 'is_answer', 'segments', 'positions'}
  for row in range(2):
    segments, positions = batch['segments'][row], batch['positions'][row]
    for segment in range(1, segments.max() + 1):
      span = segments == segment
      assert positions[span].tolist() == list(range(span.sum()))
      assert len(set(batch['tokens'][row][span])) == 1
    assert not batch['is_answer'][row][segments == 0].any()


def test_held_out_rows_are_fixed():
  arguments = dict(row_len=16, num_rows=2, max_batches=3)
  first = pipeline.held_out(source(), [1, 5, 7, 9, 30], **arguments)
  again = pipeline.held_out(source(), [1, 5, 7, 9, 30], **arguments)
  assert equal(first, again)
  tokens = np.concatenate([batch['tokens'].ravel() for batch in first])
  assert set(tokens) == {0, 2, 6, 8, 10, 31}


def test_training_sees_only_its_documents():
  batches = take(stream(numbers=range(10)), 20)
  tokens = np.concatenate([batch['tokens'].ravel() for batch in batches])
  assert set(tokens) <= set(range(11))


def test_data_that_does_not_fit_is_refused():
  with pytest.raises(errors.UserError, match='no document'):
    stream(numbers=[])
  with pytest.raises(errors.UserError, match='raise data.row_len'):
    pipeline.training(source(), list(range(40)), row_len=8, num_rows=2, seed=0)
