# SPDX-License-Identifier: MIT
"""A trace keeps its shape when it is made to fit."""

import numpy as np
import pytest

from jspec import errors
from jspec.bench import traffic
from jspec.sim import traces

TEXTS = ([1, 2, 3], [4, 5], [6, 7, 8, 9])


def recorded(prompt_len, output_len, arrival_s=None):
  number = len(prompt_len)
  if arrival_s is None:
    arrival_s = np.arange(number, dtype=float)
  return traces.Requests(
    np.array(arrival_s), np.array(prompt_len), np.array(output_len)
  )


def make(trace, *, max_len=100, max_tokens=20, **options):
  options = options or {'speed_up': 1.0}
  return traffic.make(
    trace, TEXTS, max_len=max_len, max_tokens=max_tokens, **options
  )


def test_what_fits_stays_as_it_was():
  found = make(recorded([3, 40, 7], [20, 1, 5]), speed_up=2.0)
  assert found.scale == 1 and found.num_cut == 0
  assert [len(p) for p in found.prompts] == [3, 40, 7]
  assert found.max_tokens.tolist() == [20, 1, 5]
  assert found.arrival_s.tolist() == [0, 0.5, 1]


def test_lengths_shrink_alike_until_nine_answers_of_ten_fit():
  rng = np.random.default_rng(0)
  output_len = rng.integers(1, 1000, 500)
  prompt_len = rng.integers(1, 3000, 500)
  found = make(recorded(prompt_len, output_len))
  assert found.scale == pytest.approx(20 / np.quantile(output_len, 0.9))
  assert found.max_tokens.max() == 20 and found.max_tokens.min() == 1
  assert np.mean(output_len * found.scale <= 20.5) >= 0.9
  lengths = np.array([len(p) for p in found.prompts])
  assert lengths.max() <= 80 and lengths.min() >= 1
  is_long = np.rint(output_len * found.scale) > 20
  is_long |= np.rint(prompt_len * found.scale) > 80
  assert found.num_cut == is_long.sum() > 0
  about = traffic.about(found)
  assert about['mean_answer_tokens'] == pytest.approx(found.max_tokens.mean())


def test_prompts_end_with_the_next_text_and_begin_with_those_before():
  found = make(recorded([2, 2, 4, 9, 12], [5] * 5))
  assert found.prompts == [
    (2, 3),
    (4, 5),
    (6, 7, 8, 9),
    (4, 5, 6, 7, 8, 9, 1, 2, 3),
    # Around the end, as often as needed.
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5)[2:],
  ]


def test_load_decides_how_fast_answers_are_wanted():
  trace = recorded([5] * 11, [10] * 11)
  found = make(trace, tokens_per_s=220.0)
  assert found.arrival_s[-1] == pytest.approx(11 * 10 / 220)
  assert found.speed_up == pytest.approx(10 / found.arrival_s[-1])
  with pytest.raises(errors.UserError, match='--speed-up 1'):
    make(recorded([5, 5], [5, 5], [0.0, 0.0]), tokens_per_s=1.0)


def test_a_context_without_room_for_a_prompt_is_refused():
  make(recorded([5], [5]), max_len=21)
  with pytest.raises(errors.UserError, match='no room for a prompt'):
    make(recorded([5], [5]), max_len=20)
