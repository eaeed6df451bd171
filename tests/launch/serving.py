# SPDX-License-Identifier: MIT
"""What files for deployment say of `jspec serve`, and whether that is true."""

import pathlib
import shutil
import sys

import pytest

from jspec.cli import main

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / 'launch'
# Beyond --grace: for streams to say that they end, and to be sent.
LAST_WORDS_S = 5


def flags(words):
  """Reads a command line as `jspec` does; fails on what does not exist."""
  return main.parse([str(word) for word in words])


def linter(name, *, install):
  """The path of a program beside Python or on the PATH; skips without it."""
  beside = pathlib.Path(sys.executable).parent / name
  found = str(beside) if beside.exists() else shutil.which(name)
  if found is None:
    pytest.skip(f'no {name}: {install}')
  return found
