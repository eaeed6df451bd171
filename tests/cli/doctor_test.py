# SPDX-License-Identifier: MIT
"""`jspec doctor`: exit codes, what is printed, what is written."""

import json

import pytest

from jspec import loading
from jspec.cli import main
from jspec.text import chat
from tests.cli.bad_input import write
from tests.doctor.checkpoints import edit, good


@pytest.fixture(scope='module')
def loaded(target):
  return loading.load_target(str(target), progress=False)


@pytest.fixture
def checkpoint(tmp_path, loaded):
  return good(
    tmp_path / 'drafter',
    loaded.model,
    target_name=loaded.name,
    target_fingerprint=loaded.fingerprint,
    template=chat.fingerprint(loaded.template),
  )


def run(capsys, *words):
  code = main.main(['doctor', *map(str, words)])
  return code, capsys.readouterr().out


def test_nothing_found_is_code_0(capsys, checkpoint, target):
  code, out = run(capsys, checkpoint, '--target', target)
  assert code == 0
  assert 'dflash, native layout' in out
  assert out.endswith('nothing found\n')


def test_findings_are_code_1_and_in_the_json(capsys, checkpoint, tmp_path):
  edit(checkpoint, lambda config, tensors: config.pop('label_shift'))
  code, out = run(capsys, checkpoint, '--json', tmp_path / 'out.json')
  assert code == 1
  assert 'wrong: ' in out and 'label_shift' in out
  result = json.loads((tmp_path / 'out.json').read_text())
  (finding,) = result['findings']
  assert finding['level'] == 'wrong'
  assert 'label_shift' in finding['what']
  assert result['layout'] == 'native'
  assert 'provenance' in result
  # What it lacks can be said.
  assert run(capsys, checkpoint, '--set', 'label_shift=0')[0] == 0


def test_what_cannot_be_read_is_code_2(refused, tmp_path):
  assert 'holds no drafter' in refused('doctor', tmp_path / 'absent')
  write(tmp_path / 'config.json', '{')
  assert 'not a readable config' in refused('doctor', tmp_path)


def test_bad_flags_are_refused(refused, checkpoint):
  prompts = ['--prompts', 'demo']
  assert 'give --target' in refused('doctor', checkpoint, *prompts)
  assert 'no target' in refused('doctor', checkpoint, '--accuracy')
  assert 'KEY=VALUE' in refused('doctor', checkpoint, '--set', 'label_shift')
  assert '--layout' in refused('doctor', checkpoint, '--layout', 'ours')


@pytest.mark.slow
def test_measured_acceptance_is_shown_by_depth(
  capsys, decodes, checkpoint, target, tmp_path
):
  prompts = write(tmp_path / 'p.jsonl', {'id': 'a', 'turns': ['w5 w6']})
  words = ['--target', target, '--prompts', prompts, '--max-tokens', '8']
  code, out = run(capsys, checkpoint, *words)
  assert code == 1
  assert 'measured on 1 answers, label_shift 0' in out
  assert 'measured on 1 answers, label_shift 1' in out
  assert 'accepted if drafted, by depth  1: ' in out
  assert 'drafts of a round are accepted' in out


@pytest.mark.slow
def test_accuracy_of_a_form_is_shown_behind_the_facts(
  capsys, decodes, target, tmp_path
):
  prompts = write(tmp_path / 'p.jsonl', {'id': 'a', 'turns': ['w5 w6']})
  words = ['--accuracy', '--prompts', prompts, '--max-tokens', '8']
  code, out = run(capsys, f'{target},weights=int8', *words)
  assert code == 0
  assert 'nothing found' in out
  assert out.splitlines()[-1].startswith('weights=int8  ')
