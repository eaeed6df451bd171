# SPDX-License-Identifier: MIT
"""The Mosaic GPU back end compiles to H100 machine code without an H100.

Needs a CUDA plugin and ptxas, which `gpu_compiler` says how to fetch: name
their folder in JSPEC_CUDA_COMPILER.
"""

import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = os.environ.get('JSPEC_CUDA_COMPILER')
ROOT = pathlib.Path(__file__).resolve().parents[2]
SPILLS = {'widest_head': 512}  # Bytes; 64 rows of 256 numbers fill registers.


@pytest.mark.skipif(not FOLDER, reason='set JSPEC_CUDA_COMPILER to a folder')
def test_compiles_for_an_h100_within_its_registers():
  done = subprocess.run(
    [sys.executable, '-m', 'tests.kernels.gpu_compiler', FOLDER],
    cwd=ROOT,
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr[-2000:]
  reports = {
    report['case']: report
    for report in map(json.loads, done.stdout.splitlines())
  }
  assert {'one_row_long', 'widest_head', 'window_and_sinks'} <= set(reports)
  for name, report in reports.items():
    print(json.dumps(report))
    assert 'H100' in report['device']
    assert report['wgmma'] > 0
    assert report['tma'] > 0
    assert report['spill_bytes'] <= SPILLS.get(name, 0), name
  # Pools dominate this one: a layer sliced out would be half of them.
  long = reports['one_row_long']
  assert long['temp_bytes'] < long['argument_bytes'] / 4
