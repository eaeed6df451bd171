# SPDX-License-Identifier: MIT
"""Measured cost tables become machines."""

import pytest

from jspec import errors
from jspec.depth import cost_table
from jspec.sim import measured


def table(contexts=(256,), least=1):
  made = cost_table.CostTable(cost_table.Key('cpu', 'tiny', 'dflash', '0'))
  for rows in (1, 4):
    for share in (least, 2, 4, 8):
      for context in contexts:
        nodes = rows * share
        made.add(rows, nodes, context, 0.01 + 1e-3 * nodes + 1e-6 * context)
    made.add_draft(rows, contexts[0], 0.002)
  return made


def test_file_becomes_buckets(tmp_path):
  path = tmp_path / 'costs.json'
  table().save(path)
  machine = measured.read(path)
  assert machine.block == 8 and 'tiny on cpu' in machine.name
  assert [bucket.rows for bucket in machine.buckets] == [1, 4]
  last = machine.buckets[-1]
  assert last.nodes == (4, 8, 16, 32)
  # Tables hold float32, and a median context.
  assert last.verify_s == pytest.approx(
    [0.014256, 0.018256, 0.026256, 0.042256]
  )
  assert last.plain_s == pytest.approx(0.014256)
  assert last.draft_s == pytest.approx(0.002)
  assert machine.prefill_s == pytest.approx(1e-3)


def test_plain_decoding_that_was_not_measured_is_unknown(tmp_path):
  path = tmp_path / 'costs.json'
  table(least=3).save(path)
  assert not measured.read(path).has_plain


def test_context_is_one_that_was_measured(tmp_path):
  path = tmp_path / 'costs.json'
  table(contexts=(256, 1024)).save(path)
  at_least, at_most = (measured.read(path, n) for n in (256, 1024))
  difference = at_most.buckets[0].plain_s - at_least.buckets[0].plain_s
  assert difference == pytest.approx(768e-6, rel=1e-3)
  for context in (255, 1025):
    with pytest.raises(errors.UserError, match='256 to 1024 cached tokens'):
      measured.read(path, context)


@pytest.mark.parametrize('text', ['', '{}', '[1]', '{"key": {"a": 1}}'])
def test_other_files_are_refused(tmp_path, text):
  path = tmp_path / 'costs.json'
  path.write_text(text)
  with pytest.raises(errors.UserError, match='no cost table') as caught:
    measured.read(path)
  assert '\n' not in str(caught.value)
  with pytest.raises(errors.UserError, match='no cost table'):
    measured.read(tmp_path / 'absent.json')


def test_too_few_totals_are_refused(tmp_path):
  made = cost_table.CostTable(cost_table.Key('cpu', 'tiny', 'dflash', '0'))
  made.add(4, 16, 256, 0.1)
  made.add_draft(4, 256, 0.0)
  path = tmp_path / 'costs.json'
  made.save(path)
  with pytest.raises(errors.UserError, match='4 rows were measured'):
    measured.read(path)
