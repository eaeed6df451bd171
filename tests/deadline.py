# SPDX-License-Identifier: MIT
"""Slow tests skip once the time of a run is over.

Shared machines may be half as fast on some days, and a run that is cut off says
nothing. JSPEC_TEST_DEADLINE is a time in seconds since 1970; what begins later
is skipped, and the summary counts it. Without it every test runs.
"""

import os
import time

NAME = 'JSPEC_TEST_DEADLINE'


def why_not(is_slow: bool) -> str | None:
  """Why a test does not begin; None if it does.

  Args:
    is_slow: whether it is one of the slow tests; others always run.

  Raises:
    ValueError: the deadline is no number.
  """
  deadline = os.environ.get(NAME)
  if not is_slow or not deadline or time.time() < float(deadline):
    return None
  return f'no time left: {NAME} is over; run make test-slow without it'
