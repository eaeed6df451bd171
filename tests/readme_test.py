# SPDX-License-Identifier: MIT
"""What the documents tell a reader to type exists, and so do the files."""

import pathlib
import re
import shlex
import subprocess

import pytest

from jspec import config as config_lib
from jspec.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENTS = ('README.md', 'launch/README.md', 'configs/README.md')
SCRIPTS = ('launch/local.sh', 'launch/gpu.sh')
# A word of a path in back quotes, with a folder or a known ending.
_PATH = re.compile(
  r'`((?:jspec|kernels|configs|launch|tests)/[\w./-]+|\.ci/run|LICENSE)`'
)


def joined(text: str) -> list[str]:
  """Lines, those that end in a backslash joined with the next."""
  return [line.strip() for line in text.replace('\\\n', ' ').splitlines()]


def documented() -> list[str]:
  """Every command in a bash block of a document."""
  found = []
  for document in DOCUMENTS:
    path = ROOT / document
    if path.exists():
      text = path.read_text(encoding='utf-8')
      for block in re.findall(r'```bash\n(.*?)```', text, re.DOTALL):
        found += [line for line in joined(block) if line]
  return found


def scripted() -> list[str]:
  """Every jspec command of the launch scripts."""
  found = []
  for script in SCRIPTS:
    text = (ROOT / script).read_text(encoding='utf-8')
    found += [
      line.replace('"$@"', '')
      for line in joined(text)
      if line.startswith('.venv/bin/jspec')
    ]
  return found


def makefile_targets() -> set[str]:
  text = (ROOT / 'Makefile').read_text(encoding='utf-8')
  return set(re.findall(r'^([\w.-]+):(?!=)', text, re.MULTILINE))


def check(command: str) -> None:
  """Raises unless the command would start."""
  words = shlex.split(command, comments=True)
  while words and re.fullmatch(r'[A-Z]+=\S*', words[0]):
    words = words[1:]
  program = words[0].removeprefix('.venv/bin/')
  if program == 'python' and words[1] == '-m':
    module = words[2].removeprefix('jspec.').removesuffix('.main')
    program, words = 'jspec', ['jspec', module, *words[3:]]
  if program == 'jspec':
    args = main.parse(words[1:])
    config = getattr(args, 'config', '')
    if config and '$' not in config:
      values = config_lib.load_file(str(ROOT / config))
      config_lib.apply_overrides(
        values, [word.removeprefix('--config.') for word in args.overrides]
      )
  elif program == 'make':
    assert set(words[1:]) <= makefile_targets()
  else:
    assert (ROOT / program).stat().st_mode & 0o100, f'{program} does not run'


@pytest.mark.parametrize('command', documented())
def test_documented_command_starts(command):
  check(command)


@pytest.mark.parametrize('command', scripted())
def test_scripted_command_starts(command):
  check(command)


@pytest.mark.parametrize(
  'command',
  [
    'jspec nonsense',
    'make nonsense',
    'jspec train --config configs/train/dflash.py --config.nonsense=1',
    'python -m jspec.generate --nonsense',
  ],
)
def test_check_refuses_what_does_not_exist(command):
  with pytest.raises((SystemExit, AssertionError, ValueError)):
    check(command)


@pytest.mark.parametrize('document', DOCUMENTS)
def test_named_files_exist(document):
  path = ROOT / document
  names = _PATH.findall(path.read_text(encoding='utf-8'))
  assert [name for name in names if not (ROOT / name).exists()] == []


def test_quickstart_is_two_commands():
  text = (ROOT / 'README.md').read_text(encoding='utf-8')
  quickstart = text.split('## Quickstart')[1]
  block = re.search(r'```bash\n(.*?)```', quickstart, re.DOTALL).group(1)
  assert len(block.strip().splitlines()) == 2


@pytest.mark.parametrize(
  'script', sorted((ROOT / 'launch').glob('*.sh')), ids=lambda path: path.name
)
def test_launch_script_is_shell(script):
  assert script.stat().st_mode & 0o100
  subprocess.run(['bash', '-n', str(script)], check=True)
