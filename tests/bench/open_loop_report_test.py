# SPDX-License-Identifier: MIT
"""A replay is shown whatever it found, and was not able to find."""

from jspec.bench import open_loop_report


def result(**changes):
  line = {
    'tokens_per_second': 40.0,
    'tokens_per_busy_second': 50.0,
    'goodput': 30.0,
    'first_token_s': {'p50': 0.5, 'p90': 0.9, 'p99': 2.0},
    'per_token_s': {'p50': 0.02, 'p90': 0.03, 'p99': 0.04},
    'over_plain': {'tokens_per_busy_second': 1.25},
    'mean_rows': 3.25,
    'rounds_by_depth': [3, 1],
    **changes,
  }
  return {
    'results': {'dcut': line},
    'limits': {'first_token_s': 1.5, 'per_token_s': None},
    'trace': {
      'num_requests': 7,
      'seconds': 60.0,
      'speed_up': 2.0,
      'length_scale': 0.5,
      'mean_prompt_tokens': 30.0,
      'mean_answer_tokens': 9.0,
      'num_cut': 2,
    },
  }


def test_table_has_a_line_for_each_name_and_says_what_became_of_the_trace():
  text = open_loop_report.table(result())
  assert (
    '| dcut | 40.0 | 50.0 | 1.25 | 30.0 | 0.50 | 0.90 | 2.00 | 20.0 | 30.0'
    ' | 40.0 | 3.2 |' in text
  )
  assert '7 requests in 60 s (2 times as fast' in text
  assert 'within 1.5 s, then any time a token' in text


def test_answers_that_come_at_once_and_short_runs_are_shown_too():
  """No time per token, no launch without a prompt, no plain decoding."""
  bare = result(per_token_s=None, over_plain=None)
  for name in ('rounds_by_depth', 'mean_rows'):
    del bare['results']['dcut'][name]
  assert '| dcut | 40.0 | 50.0 |  | 30.0 | 0.50' in open_loop_report.table(bare)
  assert open_loop_report.plot(bare, 'bare').count('<svg') == 2
  zero = result(per_token_s={'p50': 0.0, 'p90': 0.1, 'p99': 0.2})
  assert open_loop_report.plot(zero, 'zero').count('<svg') == 3
  full = open_loop_report.plot(result(), 'full')
  assert full.count('<svg') == 4 and 'ms per token' in full
