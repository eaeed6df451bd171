# SPDX-License-Identifier: MIT
"""The profile says what an engine's cost table says."""

import json

import pytest

from jspec.bench import profile
from jspec.depth import cost_table
from jspec.drafters import ngram
from jspec.serve import settings
from jspec.testing import toy


def engine(num_drafts=3):
  """Sizes and costs of an engine: 10 ms, and 1 ms a node; proposing 2 ms."""
  table = cost_table.CostTable(cost_table.Key('stone', 't', 'd', '0'))
  for rows in (1, 4):
    for nodes in {rows, rows * (num_drafts + 1)}:
      table.add(rows, nodes, 256, 0.010 + 0.001 * nodes)
    table.add_draft(rows, 256, 0.002)
  drafter = ngram.NGram(num_drafts) if num_drafts else None
  chosen = settings.Settings(max_rows=4, row_buckets=(1, 4))
  return settings.resolve(chosen, toy.target(), drafter), table


def test_profile_shows_the_costs():
  result = profile.run(*engine())
  assert json.loads(json.dumps(result)) == result
  assert result['device'] == 'stone' and result['context'] == 256
  assert [at['rows'] for at in result['rows']] == [1, 4]
  for at in result['rows']:
    assert at['draft_ms'] == pytest.approx(2)
    for line in at['budgets']:
      ms = 10 + line['nodes']
      assert line['verify_ms'] == pytest.approx(ms, rel=1e-3)
      assert line['ms_per_node'] == pytest.approx(ms / line['nodes'], rel=1e-3)
    nodes = [line['nodes'] for line in at['budgets']]
    assert nodes[0] == at['rows'] and nodes[-1] == 4 * at['rows']
  four = result['rows'][1]['budgets']
  assert four[0]['is_measured'] and four[-1]['is_measured']
  assert len(four) > 2 and not any(x['is_measured'] for x in four[1:-1])


def test_must_accept_is_where_a_token_takes_as_long_as_plainly():
  result = profile.run(*engine())
  for at in result['rows']:
    plain = at['budgets'][0]
    assert plain['must_accept'] is None
    for line in at['budgets'][1:]:
      drafts = line['nodes'] - at['rows']
      tokens = at['rows'] + drafts * line['must_accept']
      a_token = (at['draft_ms'] + line['verify_ms']) / tokens
      assert a_token == pytest.approx(plain['verify_ms'] / at['rows'])
  assert profile.must_accept(4, 8, 3.0, plain=1.0) == 2  # Never pays.


def test_table_has_a_line_for_every_budget_and_marks_what_is_interpolated():
  result = profile.run(*engine())
  lines = profile.table(result).splitlines()
  num_budgets = sum(len(at['budgets']) for at in result['rows'])
  rows = [line for line in lines if line.startswith('| ')]
  assert len(rows) == 1 + num_budgets
  assert '| 4 | 16 | 26.00 |' in profile.table(result)
  marked = sum('~' in line for line in rows)
  assert marked == sum(
    not line['is_measured'] for at in result['rows'] for line in at['budgets']
  )
  assert marked > 0


def test_engine_without_drafter_has_one_budget():
  result = profile.run(*engine(num_drafts=0))
  assert [len(at['budgets']) for at in result['rows']] == [1, 1]
  assert 'must accept' in profile.table(result)


def test_plot_has_a_line_for_each_number_of_rows():
  text = profile.plot(profile.run(*engine()), 'stone age')
  assert '>1 row<' in text and '>4 rows<' in text and 'stone age' in text
  assert text.count('<circle') == sum(
    len(at['budgets']) for at in profile.run(*engine())['rows']
  )
