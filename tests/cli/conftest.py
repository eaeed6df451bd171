# SPDX-License-Identifier: MIT
"""Fixtures of the tests of bad input."""

import re

import pytest

from jspec.cli import main, progress
from jspec.decode import generate
from tests import tiny_model
from tests.cli.bad_input import CONFIG, contents
from tests.evals import unchecked


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  """A good target; tests that need a bad one write their own."""
  return tiny_model.write(tmp_path_factory.mktemp('models') / 'tiny')


@pytest.fixture
def decodes(monkeypatch):
  """For tests that compile a decoder: makes that possible, and short."""
  monkeypatch.setattr(generate, 'PREFILL_CHUNKS', (16,))
  with unchecked.constructors():
    yield


@pytest.fixture
def refused(tmp_path, monkeypatch, capfd):
  """Runs a program in an empty folder; returns what the error line says."""
  root = main.__file__.rsplit('/jspec/', 1)[0]

  def run(*words):
    folder = tmp_path / 'cwd'
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    # A slow machine would be told what it waits for.
    monkeypatch.setattr(progress, '_LOG_S', 1e6)
    before = contents(tmp_path)
    words = [str(word).replace(CONFIG, f'{root}/{CONFIG}') for word in words]
    try:
      code = main.main(words)
    except SystemExit as stop:
      code = stop.code
    _, err = capfd.readouterr()
    assert code == 2, err
    lines = err.splitlines()
    assert len(lines) == 1 and err.endswith('\n'), err
    assert re.match(r'error: \S', lines[0])
    assert contents(tmp_path) == before
    return lines[0].removeprefix('error: ')

  return run
