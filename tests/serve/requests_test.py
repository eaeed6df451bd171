# SPDX-License-Identifier: MIT
"""A request moves between states as drawn, and counts as it goes."""

import itertools

import pytest

from jspec.serve import requests

State = requests.State
DRAWN = {
  (State.WAITING, State.PREFILLING),
  (State.WAITING, State.DECODING),
  (State.PREFILLING, State.DECODING),
  (State.PREFILLING, State.WAITING),
  (State.DECODING, State.WAITING),
  (State.DECODING, State.FINISHED),
  (State.WAITING, State.CANCELLED),
  (State.PREFILLING, State.CANCELLED),
  (State.DECODING, State.CANCELLED),
}


def progress(num_tokens=5, max_tokens=4):
  request = requests.Request(
    id='r', prompt=tuple(range(num_tokens)), max_tokens=max_tokens
  )
  return requests.Progress(request=request, arrival=3, max_tokens=max_tokens)


@pytest.mark.parametrize('pair', list(itertools.product(State, State)))
def test_state_changes_as_drawn_only(pair):
  one = progress()
  one.state = pair[0]
  if pair in DRAWN:
    one.move(pair[1])
    assert one.state is pair[1]
  else:
    with pytest.raises(ValueError, match=f'cannot become {pair[1].value}'):
      one.move(pair[1])


def test_prompt_of_one_token_decodes_at_once():
  one = progress(num_tokens=1)
  one.admit(0, 0, (4,), 0)
  assert one.is_decoding and one.prefill_len == 0


def test_rows_are_one_fewer_than_tokens():
  one = progress()
  assert one.rank == (0, 3) and one.max_rows == 9
  one.admit(0, 0, (4, 5), 2)
  assert one.is_prefilling and one.prefill_len == 4
  one.prefill(1)
  assert one.is_prefilling
  one.prefill(1)
  assert one.is_decoding
  one.emit((7, 8))
  assert (one.num_emitted, one.num_remaining, one.num_rows) == (2, 2, 6)


def test_preempted_request_prefills_what_it_emitted():
  one = progress()
  one.admit(0, 0, (4, 5), 2)
  one.prefill(2)
  one.emit((7, 8))
  one.leave(State.WAITING)
  assert (one.row, one.pages, one.in_flight) == (None, (), 0)
  one.admit(1, 5, (9, 8), 4)
  assert one.prefill_len == 6 and one.num_prefilled == 4
  assert one.num_remaining == 2 and one.max_rows == 9
  # What a client is told was cached is the first admission's.
  assert (one.num_cached, one.num_preemptions) == (2, 1)


def test_wrong_counts_are_errors():
  one = progress()
  with pytest.raises(ValueError, match='is waiting and may emit'):
    one.emit((1,))
  one.admit(0, 0, (4, 5), 0)
  for count in (0, 5):
    with pytest.raises(ValueError, match='4 tokens to prefill'):
      one.prefill(count)
  one.prefill(4)
  with pytest.raises(ValueError, match='may emit 4 tokens, not 5'):
    one.emit((1,) * 5)
