# SPDX-License-Identifier: MIT
"""Several drafters are told apart by what they did."""

import numpy as np

from jspec.bench import drafters_table
from jspec.serve import device, metrics


def test_drafters_have_a_line_each():
  counts = metrics.Metrics(num_drafts=2)
  for name, num_tokens in (('a', 6), ('b', 0)):
    counts.answered(
      device.Answer(
        row=0,
        tokens=tuple(range(num_tokens)),
        origins=(0,) * num_tokens,
        is_stopped=False,
        has_failed=False,
        num_rounds=num_tokens // 2,
        num_drafted=np.asarray([3, 2]),
        num_accepted=np.asarray([2, 1]),
        num_broken=0,
        logprobs=None,
      ),
      name,
    )
  lines = drafters_table.table(counts.drafters()).splitlines()
  assert lines[2:] == [
    '| a | 6 | 2.00 | 3 2 | 2 1 |',
    '| b | 0 | 0.00 | 3 2 | 2 1 |',
  ]
  assert all(line.count('|') == 6 for line in lines)
