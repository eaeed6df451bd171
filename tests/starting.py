# SPDX-License-Identifier: MIT
"""Starts the processes of a test: one module, several times, on CPU devices."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
_GLOO = re.compile(r'^\[Gloo\] .*\n', re.MULTILINE)


def coordinator() -> str:
  """An address of this machine that nobody listens at."""
  with socket.create_server(('127.0.0.1', 0)) as probe:
    return f'127.0.0.1:{probe.getsockname()[1]}'


def start(
  module: str, arguments: Sequence[Sequence[str]], num_devices: int
) -> list[subprocess.Popen]:
  """Starts `python -m module`, once for every list of arguments.

  Args:
    module: by its import name.
    arguments: of each process.
    num_devices: of each process.
  """
  names = dict(
    os.environ,
    PYTHONPATH=str(ROOT),
    XLA_FLAGS=f'--xla_force_host_platform_device_count={num_devices}',
    JAX_PLATFORMS='cpu',
    JAX_COMPILATION_CACHE_DIR='',
    JAX_DISABLE_MOST_OPTIMIZATIONS='1',
  )
  return [
    subprocess.Popen(
      [sys.executable, '-m', module, *words],
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      cwd=ROOT,
      env=names,
    )
    for words in arguments
  ]


def ended(
  started: Sequence[subprocess.Popen], timeout_s: float
) -> tuple[list[str], list[int]]:
  """What each printed, and its exit code; none of them stays behind.

  Lines in which Gloo says that it has connected are left out.
  """
  ends = time.monotonic() + timeout_s
  try:
    texts = [
      one.communicate(timeout=max(ends - time.monotonic(), 0.1))[0]
      for one in started
    ]
  finally:
    for one in started:
      one.kill()
      one.wait()
  texts = [_GLOO.sub('', text) for text in texts]
  return texts, [one.returncode for one in started]
