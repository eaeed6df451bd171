# SPDX-License-Identifier: MIT
"""The systemd unit."""

import shlex
import subprocess
import sys

import pytest

from jspec.cli import serve
from tests.launch import serving

PATH = serving.LAUNCH / 'jspec.service'
TEXT = PATH.read_text(encoding='utf-8')
SETTINGS = [
  tuple(line.split('=', 1))
  for line in TEXT.splitlines()
  if '=' in line and not line.startswith('#')
]
SERVICE = dict(SETTINGS)


def args(more=''):
  words = shlex.split(SERVICE['ExecStart'].replace('$JSPEC_ARGS', more))
  assert words[0] == '/opt/jspec/bin/jspec'
  return serving.flags(words[1:])


def verify(tmp_path, text):
  """systemd's own check, of a unit whose program exists."""
  program = serving.linter('systemd-analyze', install='part of systemd')
  unit = tmp_path / 'jspec.service'
  unit.write_text(text.replace('/opt/jspec/bin/jspec', sys.executable))
  return subprocess.run(
    [program, 'verify', str(unit)], capture_output=True, text=True, check=False
  )


def test_systemd_understands_it(tmp_path):
  done = verify(tmp_path, TEXT)
  assert (done.returncode, done.stderr) == (0, '')


def test_systemd_would_find_something(tmp_path):
  done = verify(tmp_path, TEXT.replace('ExecStart=', 'ExecBegin='))
  assert done.returncode or done.stderr


@pytest.mark.parametrize(
  'more', ['', '--rows 8 --drafter ngram', '--port=9000 --require-spec']
)
def test_flags_exist(more):
  found = args(more)
  assert found.host == '127.0.0.1'
  assert (found.rows, found.port) == (
    8 if 'rows' in more else 16,
    9000 if 'port' in more else 8000,
  )


def test_there_is_time_to_stop():
  assert SERVICE['KillSignal'] == 'SIGTERM'
  assert int(SERVICE['TimeoutStopSec']) >= args().grace + serving.LAST_WORDS_S


def test_bad_flags_are_not_tried_again():
  """`jspec` ends with 2 for them."""
  assert SERVICE['Restart'] == 'on-failure'
  assert SERVICE['RestartPreventExitStatus'] == '2'


def test_it_may_write_where_it_writes_only():
  environment = ' '.join(value for key, value in SETTINGS if 'Envir' in key)
  for name in ('HOME', 'XDG_CACHE_HOME', 'JSPEC_CACHE'):
    assert f'{name}=%C/{SERVICE["CacheDirectory"]}' in environment
  assert SERVICE['ProtectSystem'] == 'strict'
  assert SERVICE['DynamicUser'] == SERVICE['NoNewPrivileges'] == 'yes'
  # XLA would not run.
  assert 'MemoryDenyWriteExecute' not in SERVICE


def test_file_of_the_environment_is_named_with_what_it_may_set():
  assert SERVICE['EnvironmentFile'] == '-/etc/jspec.env'
  assert serve._KEY in TEXT and 'JSPEC_ARGS' in TEXT
