# SPDX-License-Identifier: MIT
"""Prefill chunks: compiled lengths, within the room, the first rows first."""

import pytest

from jspec.serve import chunks, requests


@pytest.mark.parametrize(
  'num_tokens, room, expected',
  [
    (150, 100, 64),
    (20, 100, 64),
    (20, 63, 16),
    (16, 100, 16),
    (1, 16, 16),
    (1, 15, None),
    (64, 64, 64),
    (65, 1000, 64),
  ],
)
def test_smallest_that_holds_the_rest_or_largest_that_fits(
  num_tokens, room, expected
):
  assert chunks.choose(num_tokens, room, (16, 64)) == expected


def prefilling(arrival, num_tokens, num_cached=0):
  request = requests.Request(
    id=arrival, prompt=tuple(range(num_tokens)), max_tokens=5
  )
  progress = requests.Progress(request=request, arrival=arrival, max_tokens=5)
  progress.admit(arrival, 7, (1, 2, 3), num_cached)
  return progress


def test_rows_share_the_room_in_order():
  rows = [prefilling(0, 151), prefilling(1, 30, 9), prefilling(2, 10)]
  first = chunks.plan(rows, 100, (16, 64))
  assert [(c.row, c.start, len(c.tokens), c.size) for c in first] == [
    (0, 0, 64, 64),
    (1, 9, 16, 16),
    (2, 0, 9, 16),
  ]
  assert [c.is_last for c in first] == [False, False, True]
  assert [c.next_token for c in first] == [64, 25, 9]
  assert {c.epoch for c in first} == {7}
  second = chunks.plan(rows, 100, (16, 64))
  assert [(c.row, c.start, len(c.tokens)) for c in second] == [
    (0, 64, 64),
    (1, 25, 4),
  ]
  third = chunks.plan(rows, 100, (16, 64))
  # The anchor (token 150) is in no chunk.
  assert [c.tokens for c in third] == [tuple(range(128, 150))]
  assert all(row.is_decoding for row in rows)
  assert chunks.plan(rows, 100, (16, 64)) == []


def test_row_without_room_waits_for_the_next_launch():
  rows = [prefilling(0, 65), prefilling(1, 9)]
  first = chunks.plan(rows, 64, (16, 64))
  assert [c.row for c in first] == [0]
  assert [c.row for c in chunks.plan(rows, 64, (16, 64))] == [1]
