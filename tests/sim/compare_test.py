# SPDX-License-Identifier: MIT
"""Comparisons name what they compare with; what is unknown is n/a."""

import json

import pytest

from jspec.sim import acceptance, compare, contender
from tests.sim import small

SHARP = acceptance.Domain(mean=0.75, between=10.0, within=0.3)


def lines_of(comparison):
  return {line['policy']: line for line in comparison['lines']}


def test_baselines_are_always_there():
  here = small.random_world(small.machine(), SHARP)
  seen = []
  found = compare.compare(here, ['dcut'], lambda *pair: seen.append(pair))
  lines = lines_of(found)
  assert list(lines) == [
    *('dcut', 'plain', 'static,depth=1', 'static,depth=2', 'static', 'oracle')
  ]
  assert seen == [(n, 6) for n in range(1, 7)]
  fixed = compare.fixed(here.machine)
  assert set(fixed) == set(lines) - {'dcut', 'oracle'}
  best = max(fixed, key=lambda name: lines[name]['tokens_per_s'])
  assert found['best_fixed'] == best
  assert lines[best]['share_of_best_fixed'] == 1
  assert lines['plain']['speedup'] == 1
  assert lines['oracle']['share_of_oracle'] == 1
  dcut = lines['dcut']
  assert dcut['speedup'] == pytest.approx(
    dcut['tokens_per_s'] / lines['plain']['tokens_per_s']
  )
  json.dumps(found)


def test_plain_is_one_line_however_it_is_asked_for():
  here = small.random_world(small.machine(), SHARP, num_requests=16)
  found = compare.compare(here, ['static,depth=0', 'static'])
  names = [line['policy'] for line in found['lines']]
  assert names[:2] == ['plain', 'static'] and len(set(names)) == len(names)


def test_accurate_but_slow_is_no_gain():
  # Deep drafts accept most and lose: the table must show it.
  here = small.random_world(small.machine(node_s=9.0), SHARP)
  lines = lines_of(compare.compare(here, []))
  deep, plain = lines['static'], lines[contender.PLAIN]
  assert deep['tokens_per_round'] > 2 * plain['tokens_per_round']
  assert deep['speedup'] < 1 and deep['tpot_p50_s'] > plain['tpot_p50_s']


def test_unknown_is_not_a_number():
  here = small.random_world(small.machine(plain=False), SHARP, num_requests=16)
  found = compare.compare(here, ['dcut'])
  assert all(line['speedup'] is None for line in found['lines'])
  text = compare.markdown([found])
  assert text.count('n/a') == len(found['lines'])
  assert 'plain |' not in text.replace('x plain', '')


def test_table_has_a_line_for_each_and_marks_the_best():
  here = small.random_world(small.machine(), SHARP, num_requests=16)
  found = compare.compare(here, ['dcut'])
  lines = compare.markdown([found, found]).splitlines()
  assert len(lines) == 2 + 2 * len(found['lines'])
  assert len({line.count('|') for line in lines}) == 1
  assert sum('(best fixed)' in line for line in lines) == 2
  assert lines[2].endswith(' |') and '0: ' in lines[2] and '2-3: ' in lines[2]
