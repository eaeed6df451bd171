# SPDX-License-Identifier: MIT
"""Of a test with many parameters, a few in the fast suite and all in the slow.

`@pytest.mark.few(3)` leaves three of a test's cases as they are, spread over
their order, and makes the others slow ones. It is for cases that are alike and
take seconds each.
"""

from collections.abc import Sequence
from typing import Any


def others(cases: Sequence[Any], num: int) -> list[Any]:
  """Those of the cases that are not among `num` spread over their order.

  Raises:
    ValueError: `num` is less than 1.
  """
  if num < 1:
    raise ValueError(f'few({num}): leave one or more')
  step = max(len(cases) / num, 1)
  kept = {int(index * step) for index in range(num)}
  return [case for index, case in enumerate(cases) if index not in kept]
