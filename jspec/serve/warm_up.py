# SPDX-License-Identifier: MIT
"""Measures what rounds cost, before traffic.

Three points for each number of rows, and some more while they are few; the rest
is interpolated and then learned from live rounds (`depth.cost_table`):

  plain                    verifying one node a row
  fused, smallest budget   the same, and proposing: the difference is proposing
  fused, largest budget    verifying everything

Every budget runs then, since what runs for the first time touches its
memory for the first time, which takes longer than a round. Rows are filled with
nothing: what a cache holds does not change how long it takes to read.

Of several drafters each that some row chose proposes, so the rows are dealt out
to all of them in turn; where rows are fewer than drafters, to the first ones.
Live rounds then say what those cost that requests really choose (`forms`).
"""

import statistics
import time
from collections.abc import Callable

from jspec.depth import cost_table
from jspec.serve import asks, plan, programs, settings
from jspec.serve import device as device_lib

CONTEXT = 256  # committed tokens of each row
NUM_RUNS = 3
MAX_POINTS = 12  # unless there are more than four numbers of rows


def table(
  device: device_lib.Device,
  sizes: settings.Sizes,
  *,
  has_drafter: bool,
  on_progress: Callable[[int, int, str], None] | None = None,
) -> cost_table.CostTable:
  """Measures a few points for every number of rows.

  The device must be idle; no row of it is left running.

  Args:
    device: all programs compiled.
    sizes: of the engine.
    has_drafter: whether there is anything to propose.
    on_progress: called with (points measured, all of them, its name).
  """
  found = cost_table.CostTable()
  buckets = _buckets(sizes)
  num_points = len(buckets) * (3 if has_drafter else 1)
  # What is left is spent on budgets in between, of many rows first: few rows
  # read the weights once however many nodes they have.
  between = {}
  for rows in reversed(buckets):
    inner = device.sizes(programs.FUSED, rows)[1:-1] if has_drafter else ()
    between[rows] = min(len(inner), max(MAX_POINTS - num_points, 0))
    num_points += between[rows]
  done = 0

  def point(form, rows, pages, context, budget):
    nonlocal done
    seconds = _seconds(device, form, pages, context, budget)
    done += 1
    if on_progress is not None:
      on_progress(done, num_points, f'{form} {rows}')
    return seconds

  for rows in buckets:
    pages, context = _room(sizes, rows)
    plain = point(programs.PLAIN, rows, pages, context, 0)
    found.add(rows, rows, context, plain)
    if has_drafter:
      budgets = device.sizes(programs.FUSED, rows)
      least = point(programs.FUSED, rows, pages, context, 0)
      drafting = max(least - plain, 0.0)
      found.add_draft(rows, context, drafting)
      for budget in range(1, len(budgets) - 1):
        if budget <= between[rows]:
          seconds = point(programs.FUSED, rows, pages, context, budget)
          seconds = max(seconds - drafting, plain)
          found.add(rows, budgets[budget], context, seconds)
        else:
          _run(device, programs.FUSED, pages, context, budget)
      most = point(programs.FUSED, rows, pages, context, len(budgets) - 1)
      found.add(rows, budgets[-1], context, max(most - drafting, plain))
    else:
      found.add_draft(rows, context, 0.0)
  return found


def ready(
  device: device_lib.Device,
  sizes: settings.Sizes,
  costs: cost_table.CostTable | None,
  has_drafter: bool,
  on_progress: Callable[[int, int, str], None] | None = None,
) -> cost_table.CostTable:
  """Runs every program, and measures it if no costs are given (`table`)."""
  if costs is None:
    return table(
      device, sizes, has_drafter=has_drafter, on_progress=on_progress
    )
  touch(device, sizes, has_drafter=has_drafter)
  return costs


def touch(
  device: device_lib.Device, sizes: settings.Sizes, *, has_drafter: bool
) -> None:
  """Runs every program once, for an engine whose costs are known already.

  With its largest budget, whose memory holds that of the others; their own
  first rounds are a little slower, and all of them would take twice as long.
  """
  for rows in _buckets(sizes):
    pages, context = _room(sizes, rows)
    for form in (programs.PLAIN, programs.FUSED)[: 1 + has_drafter]:
      largest = len(device.sizes(form, rows)) - 1
      _run(device, form, pages, context, largest)


def _buckets(sizes):
  """Rows that fit the pool side by side; others never run side by side.

  A pool smaller than every bucket runs the smallest, partly filled.
  """
  pages = sizes.scheduler.num_pages
  buckets = [rows for rows in sizes.row_buckets if rows <= pages]
  return buckets or [sizes.row_buckets[0]]


def _room(sizes, rows):
  """Pages of each row, and the committed tokens that they are to hold."""
  pool = sizes.scheduler
  behind = pool.max_drafts + 1  # What a round may commit.
  num_filled = min(rows, pool.num_pages)
  per_row = min(
    pool.num_pages // num_filled,
    -(-(CONTEXT + behind) // pool.page_size),
    sizes.capacity,
  )
  context = max(min(CONTEXT, per_row * pool.page_size - behind), 0)
  pages = [
    tuple(range(row * per_row, (row + 1) * per_row))
    for row in range(num_filled)
  ]
  return pages, context


def _fill(device, pages, context):
  """Gives every row `context` tokens that nobody wrote, and lets it run."""
  names = device.drafters
  for row, owned in enumerate(pages):
    device.admit(
      plan.Admission(
        row=row,
        epoch=0,
        request_id=None,
        tokens=(0,),
        max_tokens=1,
        pages=owned,
        num_cached=context,
        params=asks.Ask(drafter=names[row % len(names)]),
      ),
      num_prompt=1,
    )
    # One token, so that the row never outgrows its pages.
    device.start(row, 1)


def _seconds(device, form, pages, context, budget):
  """Median seconds of a round, the first one apart."""
  times = [
    _run(device, form, pages, context, budget) for _ in range(NUM_RUNS + 1)
  ]
  return statistics.median(times[1:])


def _run(device, form, pages, context, budget):
  """Seconds of a round; every one starts from the same state."""
  _fill(device, pages, context)
  device.wait()
  began = time.perf_counter()
  device.run(
    form,
    range(len(pages)),
    pages,
    num_rounds=1,
    wants_rows=False,
    costs=device_lib.no_costs(device.sizes(form, device.bucket(len(pages)))),
    budget=budget,
    is_measuring=True,
  )
  device.wait()
  seconds = time.perf_counter() - began
  for row in range(len(pages)):
    device.start(row, 0)
  return seconds
