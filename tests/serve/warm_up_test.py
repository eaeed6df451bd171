# SPDX-License-Identifier: MIT
"""Before traffic every program runs, measured or not."""

import pytest

from jspec.serve import device as device_lib
from jspec.serve import programs, settings, warm_up
from jspec.testing import toy


class Device(device_lib.Device):
  """Notes what is run."""

  drafters = (None,)

  def __init__(self):  # There is no state, and there are no programs.
    self.ran = []
    self.filled = []
    self.chosen = []
    self.open = set()

  def sizes(self, form, bucket):
    return (
      (bucket,) if form == programs.PLAIN else (bucket, 2 * bucket, 3 * bucket)
    )

  def bucket(self, num_rows):
    return next(b for b in (1, 4) if b >= num_rows)

  def admit(self, admission, num_prompt):
    self.filled.append(admission.pages)
    self.chosen.append(admission.params.drafter)

  def start(self, row, max_tokens):
    (self.open.add if max_tokens else self.open.discard)(row)

  def run(self, form, rows, pages, *, budget, **given):
    assert given['is_measuring'] and given['num_rounds'] == 1
    assert self.open == set(rows)
    self.ran.append((form, self.bucket(len(rows)), budget))

  def wait(self):
    pass


def sizes(num_pages):
  chosen = settings.Settings(max_rows=4, page_size=8, num_pages=num_pages)
  found = settings.resolve(chosen, toy.target(), None)
  assert found.row_buckets == (1, 4)
  return found


@pytest.mark.parametrize(
  'num_pages, has_drafter, expected',
  [
    (
      64,
      True,
      [
        (programs.PLAIN, 1, 0),
        (programs.FUSED, 1, 2),
        (programs.PLAIN, 4, 0),
        (programs.FUSED, 4, 2),
      ],
    ),
    (64, False, [(programs.PLAIN, 1, 0), (programs.PLAIN, 4, 0)]),
    (2, False, [(programs.PLAIN, 1, 0)]),  # Four rows never fit.
  ],
)
def test_touching_runs_the_largest_budget_of_every_program(
  num_pages, has_drafter, expected
):
  device = Device()
  warm_up.touch(device, sizes(num_pages), has_drafter=has_drafter)
  assert device.ran == expected
  assert not device.open  # No row is left running.


def test_measuring_runs_every_budget():
  device = Device()
  warm_up.table(device, sizes(64), has_drafter=True)
  assert set(device.ran) == {
    *[(programs.PLAIN, rows, 0) for rows in (1, 4)],
    *[(programs.FUSED, rows, budget) for rows in (1, 4) for budget in range(3)],
  }
  # Rows side by side own different pages.
  rows = device.filled[-4:]
  assert len({page for pages in rows for page in pages}) == sum(map(len, rows))


@pytest.mark.parametrize(('most', 'num_inner'), [(6, 0), (7, 1), (12, 2)])
def test_points_that_are_left_go_to_budgets_of_many_rows(
  monkeypatch, most, num_inner
):
  monkeypatch.setattr(warm_up, 'MAX_POINTS', most)
  said = []
  table = warm_up.table(
    Device(),
    sizes(64),
    has_drafter=True,
    on_progress=lambda done, total, name: said.append((done, total)),
  )
  inner = [e[:2] for e in table.entries() if e[1] not in (e[0], 3 * e[0])]
  assert sorted(inner, reverse=True) == [(4, 8), (1, 2)][:num_inner]
  assert said[-1] == (6 + num_inner, 6 + num_inner)


def test_rows_are_dealt_out_to_all_drafters():
  class Mixed(Device):
    drafters = ('a', 'b', 'c')

  device = Mixed()
  warm_up.touch(device, sizes(64), has_drafter=True)
  # Two runs of one row, two of four rows.
  assert device.chosen == ['a'] * 2 + ['a', 'b', 'c', 'a'] * 2
