# SPDX-License-Identifier: MIT
"""Where an output came from: command, config, commit, versions, device."""

import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import time
from typing import Any

import jax

_PACKAGES = ('jspec', 'jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint')


def collect(**extra: Any) -> dict[str, Any]:
  """Describes this process; `extra` adds what only the caller knows."""
  device = jax.devices()[0]
  return {
    'command': ' '.join(sys.argv),
    'time': time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime()),
    'git': git_commit(),
    'python': platform.python_version(),
    'versions': {name: _version(name) for name in _PACKAGES},
    'platform': platform.platform(),
    'device': device.device_kind,
    'num_devices': jax.device_count(),
    **extra,
  }


def write(path: pathlib.Path, **extra: Any) -> None:
  """Writes `collect(**extra)` as JSON."""
  path.write_text(json.dumps(collect(**extra), indent=2, default=str) + '\n')


def git_commit() -> str:
  """The commit of the source, with `+` if it was changed; '' outside git."""
  folder = pathlib.Path(__file__).resolve().parent
  commit = _git(folder, 'rev-parse', '--short', 'HEAD')
  return commit + ('+' if commit and _git(folder, 'status', '-s') else '')


def _git(folder, *arguments):
  try:
    done = subprocess.run(
      ['git', '-C', str(folder), *arguments],
      capture_output=True,
      text=True,
      check=False,
    )
  except FileNotFoundError:  # a machine without git
    return ''
  return done.stdout.strip() if done.returncode == 0 else ''


def _version(name):
  try:
    return importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    return 'not installed'
