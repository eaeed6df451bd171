# SPDX-License-Identifier: MIT
"""`Flights`: launches that were planned and have not come back.

They come back in the order they left. What comes back must be what was planned:
a result for each row of the rounds, of the same epoch, no longer than the row's
pages allow. Anything else is a defect of the caller and raises ValueError.
"""

import dataclasses
from collections.abc import Iterable

from jspec.serve import plan, requests


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flight:
  """One row of a launch.

  Attributes:
    progress: whose row it is.
    epoch: of the row.
    num_prefilled: rows of the prompt that are written once it is back.
    max_tokens: most tokens it commits for the row; None without rounds.
  """

  progress: requests.Progress
  epoch: int
  num_prefilled: int
  max_tokens: int | None


class Flights:
  """Launches by number, from 1."""

  def __init__(self):
    self.num_planned = self.num_observed = 0
    self._launches = {}  # number -> {row: Flight}

  def __len__(self):
    return len(self._launches)

  def leave(self, rows: dict[int, Flight]) -> None:
    """Numbers a launch; `num_planned` is its number."""
    self.num_planned += 1
    self._launches[self.num_planned] = rows

  def land(
    self, launch: int, results: Iterable[plan.Result]
  ) -> list[tuple[int, Flight, plan.Result | None]]:
    """Takes a launch back: its rows with what they did in the rounds."""
    if launch != self.num_observed + 1 or launch not in self._launches:
      raise ValueError(
        f'launch {launch} came back, but {self.num_observed + 1} of'
        f' {self.num_planned} is next'
      )
    results = sorted(results, key=lambda result: result.row)
    rows = self._launches[launch]
    expected = sorted(
      row for row, flight in rows.items() if flight.max_tokens is not None
    )
    if [result.row for result in results] != expected:
      raise ValueError(
        f'launch {launch} decoded the rows {expected}, but there are results of'
        f' {[result.row for result in results]}'
      )
    by_row = {result.row: result for result in results}
    for row, result in by_row.items():
      flight = rows[row]
      if result.epoch != flight.epoch or len(result.tokens) > flight.max_tokens:
        raise ValueError(
          f'launch {launch}, row {row}: epoch {result.epoch} and'
          f' {len(result.tokens)} tokens came back, but planned were epoch'
          f' {flight.epoch} and at most {flight.max_tokens} tokens'
        )
    del self._launches[launch]
    self.num_observed = launch
    return [(row, flight, by_row.get(row)) for row, flight in rows.items()]

  def max_tokens(self, row: int, epoch: int) -> int:
    """Most tokens that the launches in flight commit for a row."""
    flights = (rows.get(row) for rows in self._launches.values())
    return sum(
      flight.max_tokens or 0
      for flight in flights
      if flight is not None and flight.epoch == epoch
    )
