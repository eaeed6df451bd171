# SPDX-License-Identifier: MIT
"""What every file looks like."""

import ast
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = ('jspec', 'kernels', 'configs', 'tests')
SPDX = '# SPDX-License-Identifier: MIT'
MAX_LINES = 400
# Spelled in parts, so that this file may be read as well.
WORKPLACE = re.compile(
  '|'.join(
    [
      r'/' + r'work/',
      r'/' + r'tmp/pp',
      r'/' + r'root/',
      r'\bcon' + r'tract\.md',
      r'\bfoun' + r'der\b',
      r'\bow' + r'ner [A-F]\b',
      r'\bhel' + r'per session',
      r'pypi-' + r'more',
    ]
  )
)


def sources() -> list[pathlib.Path]:
  """All Python files of ours."""
  found = [ROOT / 'setup.py']
  for folder in FOLDERS:
    found += sorted((ROOT / folder).rglob('*.py'))
  # What only makes a folder of tests a package has nothing to say.
  tests = ROOT / 'tests'
  return [
    path
    for path in found
    if not (path.name == '__init__.py' and tests in path.parent.parents)
  ]


def name(path: pathlib.Path) -> str:
  return str(path.relative_to(ROOT))


@pytest.mark.parametrize('path', sources(), ids=name)
def test_file_has_licence_docstring_and_bounded_length(path):
  text = path.read_text(encoding='utf-8')
  lines = text.splitlines()
  assert lines[0] == SPDX
  assert ast.get_docstring(ast.parse(text)), 'no module docstring'
  assert len(lines) <= MAX_LINES


def committed_texts() -> list[pathlib.Path]:
  """Text files that git knows or would add; all sources outside git."""
  listed = subprocess.run(
    ['git', 'ls-files', '--cached', '--others', '--exclude-standard'],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  if listed.returncode:
    return sources()
  ends = ('.py', '.md', '.sh', '.yaml', '.toml', '.ini', 'Makefile', 'run')
  paths = [ROOT / line for line in listed.stdout.splitlines()]
  return [p for p in paths if p.name.endswith(ends) and p.is_file()]


def test_files_name_no_place_of_work():
  found = [
    f'{name(path)}: {match.group()}'
    for path in committed_texts()
    for match in WORKPLACE.finditer(path.read_text(encoding='utf-8'))
  ]
  assert found == []
