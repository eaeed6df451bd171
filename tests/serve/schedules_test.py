# SPDX-License-Identifier: MIT
"""Any schedule gives every request its own tokens and all pages back."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from jspec.serve import scheduler
from tests.serve import schedules

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_every_request_gets_its_tokens_in_any_schedule():
  # Elsewhere, because executed annotations make small functions 30 times as
  # slow; the few schedules of the next test do execute them.
  done = subprocess.run(
    [sys.executable, '-m', 'tests.serve.schedules', '300'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  totals = json.loads(done.stdout)
  # The schedules did what they are meant to try.
  assert totals['preempted'] > 150 and totals['dropped'] > 1000
  assert totals['cancelled'] > 50 and totals['hit_tokens'] > 2000
  # No livelock: launches for each token of prompt and answer.
  assert totals['launches_per_token'] < 2


def test_annotations_hold_in_any_schedule():
  assert schedules.run_all(6)['dropped'] > 5


class ForgetsFlights(scheduler.Scheduler):
  """Reserves for the next launch as if none were in flight."""

  def _rows_to_own(self, progress):
    most = len(progress.tokens) - 1 + self._launch_tokens
    return min(most, progress.max_rows)

  def check(self):
    """The device must notice, not the books."""


class ReservesTheCurrentDepth(scheduler.Scheduler):
  """Reserves for rounds without drafts, should that be the depth (BL-091)."""

  def _rows_to_own(self, progress):
    known = len(progress.tokens) - 1 + progress.in_flight
    return min(known + self.config.num_rounds, progress.max_rows)

  def check(self):
    """The device must notice, not the books."""


class ReleasesEarly(scheduler.Scheduler):
  """Gives pages back though a launch may still write to them."""

  def __init__(self, config):
    super().__init__(config)
    retire = self.ledger.retire
    self.ledger.retire = lambda pages, num_rows, _: retire(
      pages, num_rows, None
    )


class BelievesLateResults(scheduler.Scheduler):
  """Gives a result to whoever had the row, whatever the epoch (BL-066)."""

  def __init__(self, config):
    super().__init__(config)
    self._rows.is_current = lambda row, epoch: True


class CachesPartPages(scheduler.Scheduler):
  """Lets others read a page that its row still writes to."""

  def _keep(self, progress):
    self.ledger.keep(
      [*progress.tokens, *[0] * self.config.page_size],
      progress.pages,
      progress.num_rows + self.config.page_size,
      progress.request.namespace,
    )


class LosesItsPages(scheduler.Scheduler):
  """Forgets to give back what was reserved for drafts (BL-061)."""

  def _release(self, progress, state):
    progress.pages = progress.pages[:-1]
    super()._release(progress, state)


class NeverPreempts(scheduler.Scheduler):
  """Lets every row wait for the others."""

  def check(self):
    """The books are right."""

  def _grow(self, progress, missing):
    pages = self.ledger.grow(missing)
    progress.pages += pages or ()
    return pages is not None


class MixesRequests(scheduler.Scheduler):
  """Takes the row of one request and the name of another (BL-078)."""

  def _output(self, progress, result):
    output = super()._output(progress, result)
    if len(self._running) > 1:
      other = max(self._running.values(), key=lambda p: p.arrival)
      return dataclasses.replace(output, request_id=other.request.id)
    return output


@pytest.mark.parametrize(
  'broken, message',
  [
    (ForgetsFlights, 'no page to write to'),
    (ReservesTheCurrentDepth, 'no page to write to'),
    (ReleasesEarly, 'in flight share'),
    (BelievesLateResults, 'may emit'),
    (CachesPartPages, 'owners|cached page is wrong'),
    (LosesItsPages, 'owners'),
    (NeverPreempts, 'do not finish'),
    (MixesRequests, None),
  ],
)
def test_broken_scheduler_is_caught(broken, message):
  with pytest.raises((AssertionError, ValueError), match=message):
    for seed in range(40):
      schedules.run(seed, broken)


def test_same_calls_give_the_same_plans():
  assert schedules.run(3) == schedules.run(3)
