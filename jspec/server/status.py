# SPDX-License-Identifier: MIT
"""GET /v1/jspec/status: load and speculation now, in a few numbers.

What the page shows once a second; `/metrics` has all of it and more.
"""

from typing import Any

from jspec.server import served as served_lib


def of(served: served_lib.Served) -> dict[str, Any]:
  """The object.

  status            'ready', 'starting', 'stopping' or 'broken'
  rows              answers that can run at a time; null while it starts
  running, waiting  answers with a row, and without one
  num_tokens        of all answers so far
  tokens_per_round  the mean; null before the first round
  rounds_by_depth   rounds of rows that verified 0, 1, ... drafts
  """
  driver = served.driver
  found = {
    'status': _status(driver),
    'rows': None,
    'running': 0,
    'waiting': driver.num_open,
    'num_tokens': 0,
    'tokens_per_round': None,
    'rounds_by_depth': [],
  }
  if driver.engine is None:
    return found
  rows = driver.engine.sizes.scheduler.max_rows
  counts = driver.engine.metrics
  running = min(driver.num_open, rows)
  return found | {
    'rows': rows,
    'running': running,
    'waiting': driver.num_open - running,
    'num_tokens': counts.num_tokens,
    'tokens_per_round': (
      counts.num_tokens / counts.num_rounds if counts.num_rounds else None
    ),
    'rounds_by_depth': counts.num_by_depth.tolist(),
  }


def _status(driver):
  if driver.failure is not None:
    return 'broken'
  if driver.engine is None:
    return 'starting'
  return 'stopping' if driver.is_draining else 'ready'
