# SPDX-License-Identifier: MIT
"""Prompts are told apart as code, math and chat."""

import collections
import gzip
import json
import time

import pytest

from jspec.routing import classify
from tests import shared_data

SURE = {
  'code': (
    'Write a Python function that reverses a linked list.',
    '```js\nconst x = {a: 1};\n```\nWhy does this throw an exception?',
    'Fix this SQL query: SELECT * FROM users WHERE id == 3;',
  ),
  'math': (
    'Tom has 3 bags with 12 apples each and eats 5. How many are left?',
    'A train runs 60 miles per hour for 2.5 hours. How far does it go?',
  ),
  'chat': (
    'Hello! Tell me a story about a lonely fox, please.',
    'What is your opinion on the weather in Scotland?',
    '',
  ),
}


@pytest.mark.parametrize(
  'domain, text', [(d, t) for d, texts in SURE.items() for t in texts]
)
def test_plain_cases(domain, text):
  assert classify.domain(text) == domain


def test_every_feature_has_its_weights():
  assert len(classify.features('')) == len(classify.WEIGHTS)


def test_long_prompts_take_no_longer():
  began = time.perf_counter()
  classify.domain('(' * 1_000_000 + 'x ' * 1_000_000)
  assert time.perf_counter() - began < 1.0


def test_prompts_of_collections_that_it_was_not_fitted_on():
  right, wrong = collections.Counter(), collections.Counter()
  with gzip.open(shared_data.path('data/prompts/eval.jsonl.gz'), 'rt') as lines:
    for line in list(lines)[::3]:
      prompt = json.loads(line)
      if prompt['domain'] in classify.DOMAINS:
        is_right = classify.domain(prompt['turns'][0]) == prompt['domain']
        (right if is_right else wrong)[prompt['domain']] += 1
  for domain in classify.DOMAINS:
    # Many of the prompts that count as chat there ask for code.
    assert right[domain] > 1.5 * wrong[domain], (domain, right, wrong)
