# SPDX-License-Identifier: MIT
"""Sizes that cannot work are refused by name."""

import pytest

from jspec import errors
from jspec.serve import config

GOOD = dict(
  num_pages=10,
  page_size=4,
  max_rows=2,
  max_len=100,
  max_drafts=0,
  num_rounds=1,
  chunk_sizes=(4, 16),
  max_prefill_tokens=4,
)


def test_limit_is_the_smaller_of_context_and_pool():
  assert config.SchedulerConfig(**GOOD).limit == 40
  assert config.SchedulerConfig(**GOOD | {'max_len': 39}).limit == 39


@pytest.mark.parametrize(
  'name, value',
  [
    ('num_pages', 0),
    ('page_size', 0),
    ('max_rows', 0),
    ('num_rounds', 0),
    ('max_drafts', -1),
    ('max_len', 1),
    ('chunk_sizes', ()),
    ('chunk_sizes', (0, 4)),
    ('chunk_sizes', (16, 4)),
    ('chunk_sizes', (4, 4)),
    ('max_prefill_tokens', 3),
  ],
)
def test_impossible_size_is_refused(name, value):
  with pytest.raises(errors.UserError, match=f'^{name}='):
    config.SchedulerConfig(**GOOD | {name: value})
