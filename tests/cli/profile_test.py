# SPDX-License-Identifier: MIT
"""`jspec profile` and `jspec eval calibration`, from flags to files."""

import json
import types

import pytest

from jspec.cli import main
from jspec.serve import engine
from tests import tiny_model
from tests.cli.bad_input import words, write


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
  folder = tmp_path_factory.mktemp('cache')
  monkeypatch.setenv('XDG_CACHE_HOME', str(folder))
  return folder


@pytest.mark.slow
def test_profile_measures_once(decodes, target, tmp_path, cache, monkeypatch):
  out, drawn = tmp_path / 'out.json', tmp_path / 'out.svg'
  flags = [
    *('profile', '--target', str(target), '--drafter', 'ngram'),
    *('--rows', '2', '--max-len', '64', '--json', str(out)),
  ]
  assert main.main([*flags, '--plot', str(drawn)]) == 0
  first = json.loads(out.read_text())
  (at,) = first['rows']
  assert at['rows'] == 2 and at['budgets'][0]['verify_ms'] > 0
  assert at['budgets'][-1]['nodes'] == 2 * 4  # Three drafts and the anchor.
  assert first['provenance']['command'] and first['drafter'] == 'ngram'
  assert drawn.read_text().startswith('<svg')
  (table,) = (cache / 'jspec' / 'costs').iterdir()
  assert first['cost_table'] == str(table)

  given = []
  real = engine.Engine

  def start(model, drafter, chosen, mesh, *, costs, **rest):
    del mesh, rest
    given.append(costs)
    if costs is None:
      raise RuntimeError('would measure')
    sizes = engine.settings_lib.resolve(chosen, model, drafter)
    return types.SimpleNamespace(sizes=sizes, costs=costs)

  monkeypatch.setattr(engine, 'Engine', start)
  assert main.main(flags) == 0
  again = json.loads(out.read_text())
  assert again['rows'] == first['rows']
  for other in (
    ['--measure-again'],
    ['--rows', '1,2'],
    ['--drafter', 'ngram,num_draft_tokens=2'],
    ['--target', str(tiny_model.write(tmp_path / 'other', seed=7))],
  ):
    with pytest.raises(RuntimeError, match='would measure'):
      main.main([*flags, *other])
  assert [costs is None for costs in given] == [False, True, True, True, True]
  assert real is not engine.Engine


@pytest.mark.parametrize(
  'flags, said',
  [
    (['--rows', '0'], '--rows'),
    (['--rows', '1,x'], '--rows'),
    (['--max-len', '0'], '--max-len'),
    (['--plot', 'absent/out.svg'], 'absent/out.svg'),
    (['--plot', '.'], 'name a file'),
    (['--json', 'absent/out.json'], 'absent/out.json'),
    (['--target', 'nowhere'], 'nowhere'),
    (['--drafter', 'nobody'], 'nobody'),
    (['--max-len', '1'], 'max_len=1'),
    (['--nonsense'], '--nonsense'),
  ],
  ids=' '.join,
)
def test_bad_input_of_profile_is_refused(refused, target, flags, said):
  base = ['--target', target, '--drafter', 'ngram']
  assert said in refused('profile', *base, *flags)


def calibrate(refused, target, path, *more):
  return refused(
    *('eval', 'calibration', '--target', target, '--prompts', path, *more)
  )


def test_bad_input_of_calibration_is_refused(refused, target, tmp_path):
  two = write(tmp_path / 'two.jsonl', *[{'prompt': 'w1'}] * 2)
  several = write(tmp_path / 'several.jsonl', *[{'prompt': 'w1'}] * 20)
  one = write(tmp_path / 'one.jsonl', {'prompt': 'w1'})
  long = write(
    tmp_path / 'long.jsonl',
    *[{'prompt': 'w1'}] * 20,
    {'id': 'long', 'prompt': words(tiny_model.MAX_LEN)},
  )
  for path, drafter, said in (
    (two, 'none', 'name a drafter'),
    (several, 'suffix,tree_size=4', 'drafts trees'),
    (one, 'ngram', 'give more prompts'),
    (long, 'ngram', "prompt 'long'"),
    (tmp_path / 'absent.jsonl', 'ngram', 'absent.jsonl'),
  ):
    assert said in calibrate(refused, target, path, '--drafter', drafter)
  assert '--rule' in calibrate(refused, target, two, '--rule', 'block')
  assert 'top_p' in calibrate(refused, target, two, '--top-p', '0')
