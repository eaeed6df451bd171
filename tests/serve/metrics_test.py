# SPDX-License-Identifier: MIT
"""Counts of an engine, all together and drafter by drafter."""

import json

import numpy as np

from jspec.serve import device, metrics


def answer(num_tokens, drafted, accepted):
  return device.Answer(
    row=0,
    tokens=tuple(range(num_tokens)),
    origins=(0,) * num_tokens,
    is_stopped=False,
    has_failed=False,
    num_rounds=2,
    num_drafted=np.asarray(drafted),
    num_accepted=np.asarray(accepted),
    num_broken=0,
    logprobs=None,
  )


def test_rows_count_for_their_own_drafter_and_for_all():
  counts = metrics.Metrics(num_drafts=2)
  counts.answered(answer(3, [2, 2], [1, 0]), 'a')
  counts.answered(answer(5, [2, 1], [2, 1]), 'b')
  counts.answered(answer(4, [1, 1], [1, 1]), 'a')
  counts.answered(answer(2, [0, 0], [0, 0]), 'none')
  of = counts.drafters()
  assert list(of) == ['a', 'b', 'none']
  assert of['a'] == {
    'num_rounds': 4,
    'num_tokens': 7,
    'num_drafted': [3, 3],
    'num_accepted': [2, 1],
  }
  for name in ('num_drafted', 'num_accepted'):
    total = np.sum([one[name] for one in of.values()], axis=0)
    np.testing.assert_array_equal(total, getattr(counts, name))
  assert counts.num_tokens == sum(one['num_tokens'] for one in of.values())
  json.dumps(of)


def test_one_drafter_has_no_name_to_count_under():
  counts = metrics.Metrics(num_drafts=2)
  counts.answered(answer(3, [2, 2], [1, 0]))
  assert counts.num_tokens == 3 and counts.drafters() == {}
