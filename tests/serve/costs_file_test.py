# SPDX-License-Identifier: MIT
"""A cost table is found again by whom it fits, and by nobody else."""

import json
import types

import numpy as np
import pytest

from jspec.depth import cost_table
from jspec.drafters import ngram
from jspec.serve import costs_file
from jspec.serve import settings as settings_lib
from jspec.testing import toy

KEY = cost_table.Key('cpu', 'one', 'two', '0', 'rows 1/4')


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
  return tmp_path


def measured(seconds=0.02):
  table = cost_table.CostTable()
  table.add(1, 1, 256, seconds)
  table.add(4, 32, 256, 5 * seconds)
  table.add_draft(1, 256, seconds / 10)
  return table


def start(of=KEY, seconds=0.02, **given):
  """Starts something; the tables it was given, and what came back."""
  offered = []

  def make(costs):
    offered.append(costs)
    return types.SimpleNamespace(costs=costs or measured(seconds))

  made = costs_file.load_or_measure(of, make, **given)
  (table,) = offered
  return table, made


def test_second_start_is_given_the_table_of_the_first(cache):
  nothing, first = start()
  table, second = start(seconds=7.0)
  assert nothing is None
  assert table is second.costs
  assert table.entries() == first.costs.entries()
  drafts = [made.costs.costs(1, 256, (1,)).draft_s for made in (first, second)]
  np.testing.assert_array_equal(*drafts)
  assert first.costs.key == table.key == KEY
  path = costs_file.path_of(KEY)
  assert path.parent == cache / 'jspec' / 'costs'
  assert list(path.parent.iterdir()) == [path]


def test_home_is_used_without_a_place_for_caches(monkeypatch, tmp_path):
  monkeypatch.delenv('XDG_CACHE_HOME')
  monkeypatch.setenv('HOME', str(tmp_path / 'me'))
  path = costs_file.path_of(KEY)
  assert path.parent == tmp_path / 'me' / '.cache' / 'jspec' / 'costs'


def test_measuring_anew_replaces_the_table(capsys):
  start()
  table, _ = start(seconds=0.5, is_anew=True)
  assert table is None
  table, _ = start()
  assert table.seconds(1, 1, 256) == pytest.approx(0.5)
  assert capsys.readouterr().err == ''


@pytest.mark.parametrize('field', list(vars(KEY)))
def test_table_of_another_key_lies_elsewhere(field):
  start()
  other = cost_table.Key(**{**vars(KEY), field: 'other'})
  assert costs_file.path_of(other) != costs_file.path_of(KEY)
  assert start(other)[0] is None
  assert start()[0] is not None


def test_table_of_another_key_in_its_place_is_not_used(capsys):
  table = measured()
  table.key = cost_table.Key('?', 'target', 'drafter', '?')
  path = costs_file.path_of(KEY)
  path.parent.mkdir(parents=True)
  table.save(path)
  assert start()[0] is None
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('warning: ') and 'measuring again' in line
  assert start()[0] is not None


def times_taken_out(text):
  document = json.loads(text)
  return json.dumps({**document, 'draft': []})


@pytest.mark.parametrize(
  'damage',
  [
    lambda text: '',
    lambda text: text[: len(text) // 2],
    lambda text: '[]',
    lambda text: text.replace('0.02', '-1'),
    lambda text: text.replace('0.02', '"much"'),
    lambda text: text.replace('0.02', 'NaN'),
    times_taken_out,
  ],
  ids=['empty', 'cut', 'list', 'negative', 'word', 'nan', 'no drafting'],
)
def test_damaged_table_is_told_in_one_line_and_replaced(damage, capsys):
  start()
  path = costs_file.path_of(KEY)
  damaged = damage(path.read_text())
  assert damaged != path.read_text()
  path.write_text(damaged)
  assert start(seconds=0.3)[0] is None
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('warning: ') and str(path) in line
  table, _ = start()
  assert table.seconds(1, 1, 256) == pytest.approx(0.3)
  assert capsys.readouterr().err == ''


def test_folder_that_cannot_be_written_does_not_stop_the_start(cache, capsys):
  (cache / 'jspec').write_text('a file where the folder should be')
  for _ in range(2):
    table, made = start()
    assert table is None and made.costs.key == KEY
    (line,) = capsys.readouterr().err.splitlines()
    assert 'cannot keep the cost table' in line


def test_engine_that_fails_leaves_no_table():
  def fail(costs):
    raise RuntimeError('no memory')

  with pytest.raises(RuntimeError):
    costs_file.load_or_measure(KEY, fail)
  assert not costs_file.path_of(KEY).exists()


def key(target, drafter, fingerprint='f', **changes):
  chosen = settings_lib.Settings(max_rows=4, max_len=32, **changes)
  sizes = settings_lib.resolve(chosen, target, drafter)
  return costs_file.key(target, drafter, sizes, fingerprint)


def test_key_says_what_times_depend_on():
  target = toy.target()
  drafter = toy.drafter(target)
  base = key(target, drafter)
  # Other weights of the same shapes take as long, where they are no target's.
  assert key(target, toy.drafter(target, seed=9)) == base
  assert key(target, toy.drafter(target), policies=('static',)) == base
  chained = toy.drafter(target, num_draft_tokens=2)
  found = [
    base,
    key(target, drafter, fingerprint='g'),
    key(toy.target(num_layers=2), drafter),
    key(target, None),
    key(target, ngram.NGram(3)),
    key(target, ngram.NGram(4)),
    key(target, chained),
    key(target, toy.drafter(target, tree_size=3)),
    key(target, drafter, row_buckets=(2, 4)),
    key(target, drafter, num_budgets=2),
    key(target, drafter, page_size=8),
    key(target, drafter, num_pages=3),
  ]
  assert len(set(found)) == len(found)
  assert len({costs_file.path_of(of) for of in found}) == len(found)


def test_form_does_not_depend_on_addresses():
  class Odd:
    """Printed with the address of a function, as bound methods are."""

    def __init__(self):
      self.call = lambda: None

  first, second = (str(Odd().call) for _ in range(2))
  assert ' at 0x' in first  # Else this tests nothing.
  target = toy.target()
  assert costs_file.form(target) == costs_file.form(toy.target(seed=3))
  del second
