# SPDX-License-Identifier: MIT
"""The prompts that come with jspec."""

import collections
import json
import re

import pytest

from jspec.cli import options
from jspec.data import sources
from tests import shared_data

_RUN = 8


def records():
  return list(sources.read_jsonl(options.SHIPPED_PROMPTS))


def runs(text):
  """All runs of eight words."""
  words = re.findall(r"[a-z0-9']+", text.lower())
  return {tuple(words[i : i + _RUN]) for i in range(len(words) - _RUN + 1)}


def test_there_are_a_hundred_of_each_domain():
  found = records()
  assert len({record['id'] for record in found}) == len(found)
  counts = collections.Counter(record['domain'] for record in found)
  assert counts == {'code': 100, 'math': 100, 'chat': 100}
  for record in found:
    assert set(record) == {'id', 'domain', 'split', 'turns'}
    assert record['id'].startswith(record['domain'] + '-')
    assert all(turn and turn == turn.strip() for turn in record['turns'])


def test_demo_prompts_are_held_out_and_of_one_turn():
  counts = collections.Counter()
  for record in records():
    assert record['split'] in ('demo', 'train')
    if record['split'] == 'demo':
      counts[record['domain']] += 1
      assert len(record['turns']) == 1
  assert counts == {'code': 8, 'math': 8, 'chat': 8}


def test_a_tenth_have_several_turns():
  assert sum(len(record['turns']) > 1 for record in records()) == 30


def test_no_prompt_appears_twice():
  seen = {}
  for record in records():
    for run in runs(' '.join(record['turns'])):
      other = seen.setdefault(run, record['id'])
      assert other == record['id'], run


@pytest.mark.few(1)
@pytest.mark.parametrize('name', ['train', 'eval'])
def test_no_prompt_repeats_a_data_set(name):
  path = shared_data.path(f'data/prompts/{name}.jsonl.gz')
  ours = set()
  for record in records():
    for turn in record['turns']:
      ours |= runs(turn)
  for record in sources.read_jsonl(path):
    text = json.dumps(record['turns'], ensure_ascii=False)
    assert not ours & runs(text), record['id']
