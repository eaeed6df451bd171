# SPDX-License-Identifier: MIT
"""What comes back must be what was planned."""

import pytest

from jspec.serve import flights, plan, requests


def flight(max_tokens, epoch=0):
  request = requests.Request(id='r', prompt=(1, 2), max_tokens=9)
  return flights.Flight(
    progress=requests.Progress(request=request, arrival=0, max_tokens=9),
    epoch=epoch,
    num_prefilled=1,
    max_tokens=max_tokens,
  )


def result(row, num_tokens=1, epoch=0):
  return plan.Result(row=row, epoch=epoch, tokens=(5,) * num_tokens)


def test_launches_come_back_with_their_rows():
  air = flights.Flights()
  air.leave({0: flight(4), 2: flight(None), 1: flight(3)})
  air.leave({0: flight(2)})
  assert len(air) == 2 and air.num_planned == 2
  assert air.max_tokens(0, 0) == 6 and air.max_tokens(2, 0) == 0
  assert air.max_tokens(0, 1) == 0  # Another epoch's are not its own.
  landed = air.land(1, [result(1), result(0, 4)])
  assert {row: back for row, _, back in landed} == {
    0: result(0, 4),
    1: result(1),
    2: None,
  }
  assert air.num_observed == 1 and air.max_tokens(0, 0) == 2


@pytest.mark.parametrize(
  'launch, results, message',
  [
    (2, [result(0)], '1 of 2 is next'),
    (3, [result(0)], '1 of 2 is next'),
    (1, [], 'there are results of'),
    (1, [result(1)], 'there are results of'),
    (1, [result(0), result(1)], 'there are results of'),
    (1, [result(0), result(0)], 'there are results of'),
    (1, [result(0, 5)], 'at most 4 tokens'),
    (1, [result(0, epoch=1)], 'epoch 1 and 1 tokens came back'),
  ],
)
def test_other_results_are_errors(launch, results, message):
  air = flights.Flights()
  air.leave({0: flight(4), 1: flight(None)})
  air.leave({0: flight(2)})
  with pytest.raises(ValueError, match=message):
    air.land(launch, results)
  assert len(air) == 2
