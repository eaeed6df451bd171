# SPDX-License-Identifier: MIT
"""Files that live beside the repository, in an optional folder `../shared`.

A clean clone has no such folder: tests that need one of its files are skipped
and say so.
"""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / 'shared'


def path(relative: str) -> pathlib.Path:
  """The path of a shared file or folder; skips the test where it is absent."""
  found = SHARED / relative
  if not found.exists():
    pytest.skip(f'no ../shared/{relative} beside the repository')
  return found
