# SPDX-License-Identifier: MIT
"""What is refused at once, and how long an answer may be."""

import pytest

from jspec import errors
from jspec.serve import admission, requests
from jspec.serve import config as config_lib


def config(**changes):
  settings = dict(
    num_pages=16,
    page_size=4,
    max_rows=2,
    max_len=32,
    max_drafts=7,
    num_rounds=2,
    chunk_sizes=(8,),
    max_prefill_tokens=8,
  )
  return config_lib.SchedulerConfig(**(settings | changes))


def request(num_tokens, max_tokens=10**9):
  return requests.Request(
    id='r', prompt=tuple(range(num_tokens)), max_tokens=max_tokens
  )


@pytest.mark.parametrize('num_tokens', range(24, 32))
def test_answer_fills_the_context_exactly_whatever_the_drafts(num_tokens):
  # BL-074: nothing is set aside for drafts.
  for max_drafts in (0, 7):
    found = admission.max_tokens(
      request(num_tokens), config(max_drafts=max_drafts)
    )
    assert num_tokens + found == 32


def test_wanted_tokens_are_kept_where_they_fit():
  assert admission.max_tokens(request(10, 22), config()) == 22
  assert admission.max_tokens(request(10, 23), config()) == 22
  assert admission.max_tokens(request(10, 1), config()) == 1


@pytest.mark.parametrize(
  'wanted, changes, numbers',
  [
    (request(0), {}, ['empty']),
    (request(32), {}, ['32 tokens', 'context of 32']),
    (request(320), {}, ['320 tokens', 'context of 32']),
    (request(8), {'num_pages': 2}, ['8 tokens', '2 pages of 4', 'num_pages']),
    (request(8, 0), {}, ['max_tokens=0']),
    (request(8, -1), {}, ['max_tokens=-1']),
  ],
)
def test_refusal_names_the_numbers(wanted, changes, numbers):
  with pytest.raises(errors.UserError) as caught:
    admission.max_tokens(wanted, config(**changes))
  message = str(caught.value)
  assert message.startswith("request 'r': ") and '\n' not in message
  assert all(number in message for number in numbers)


def test_smaller_pool_is_the_limit():
  assert admission.max_tokens(request(7), config(num_pages=2)) == 1
