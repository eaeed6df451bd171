# SPDX-License-Identifier: MIT
"""The bake-off's parts: entries that build, results that resume, the table."""

import json
import types

import jax
import pytest

from jspec import errors
from jspec.bakeoff import entries, run, table
from jspec.data import sources
from jspec.testing import toy
from jspec.train import build

PROMPTS = [sources.Prompt('a', ('Why?',), 'chat')]
NAMES = [entry.name for entry in entries.entries(30, 16)]


@pytest.fixture(scope='module')
def loaded():
  model = toy.target(num_layers=9)
  return types.SimpleNamespace(
    name='smollm2_135m',
    model=model,
    tokenizer=None,
    stop_ids=(2,),
    fingerprint='f',
  )


@pytest.mark.few(4)
@pytest.mark.parametrize('name', NAMES)
def test_every_trained_entry_builds(loaded, name):
  (entry,) = [e for e in entries.entries(9, 16) if e.name == name]
  assert bool(entry.build) != bool(entry.spec)
  if not entry.build:
    return
  make = build.resolve(entry.build)
  drafter = make(loaded, entry.options, None, jax.random.key(0))
  captured = entries.store_taps(9)
  assert set(drafter.taps) <= set(captured)
  assert captured[-1] == 8
  drafter.set_options(**entry.decode)


def test_names_are_distinct():
  assert len(set(NAMES)) == len(NAMES)


def _fake(calls):
  def one(entry, loaded, prompts, workdir, chosen, on_message):
    calls.append(entry.name)
    return {'name': entry.name, 'note': '', 'num_params': 1}

  return one


def test_results_that_are_there_are_not_made_again(
  loaded, tmp_path, monkeypatch
):
  calls = []
  monkeypatch.setattr(run, '_one', _fake(calls))
  chosen = run.Settings(answers='x')

  def go(only, chosen=chosen):
    return run.run(
      loaded,
      PROMPTS,
      tmp_path,
      chosen,
      only=only,
      on_message=lambda line: None,
    )

  assert [r['name'] for r in go(['ngram'])] == ['ngram']
  # As a kill leaves it: nothing half written counts.
  (tmp_path / 'suffix.json.partial').write_text('{')
  assert [r['name'] for r in go(['suffix', 'ngram'])] == ['ngram', 'suffix']
  assert calls == ['ngram', 'suffix']
  with pytest.raises(errors.UserError, match='other settings'):
    go(['ngram'], run.Settings(answers='x', num_steps=7))
  with pytest.raises(errors.UserError, match='no entry .dflush'):
    go(['dflush'])
  saved = json.loads((tmp_path / 'ngram.json').read_text())
  assert saved['prompts'] == ['a']


def _result(name, rate, joint=(0.5, 0.3, 0.2)):
  overall = {
    'tokens_per_round': rate,
    'accepted_if_drafted': list(joint),
    'accepted_per_round': list(joint),
  }
  domains = {'chat': overall, 'code': overall, 'math': overall}
  return {
    'name': name,
    'num_params': 2_500_000,
    'overall': overall,
    'domains': domains,
  }


def test_table_and_claims_say_what_the_numbers_say():
  results = [
    _result('dflash', 1.6),
    _result('dflash_dpace', 1.7),
    _result('dfly', 1.65),
    _result('d2sd', 1.75),
    _result('eagle3', 1.5, (0.5, 0.4, 0.3)),
    _result('eagle3_no_ttt', 1.5, (0.5, 0.4, 0.1)),
  ]
  lines = table.markdown(results).splitlines()
  assert len(lines) == 2 + len(results)
  assert lines[2] == (
    '| dflash | 2.5 | 1.60 | 1.60 | 1.60 | 1.60 | 0.50 | 0.67 |'
  )
  said = table.claims(results).splitlines()
  assert len(said) == 4
  assert said[0].startswith(' NO  DFly')
  assert said[1].startswith('yes  D-PACE')
  assert said[2].startswith(' NO  D2SD') and '1.750' in said[2]
  assert said[3].startswith('yes  test-time') and '0.750' in said[3]
