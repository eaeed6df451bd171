# SPDX-License-Identifier: MIT
"""Compiles all programs with Mosaic and XLA:TPU and compares what they cost.

  python -m tests.tpu_compile.run [--only SUBSTRING] [--update]

Writes build/tpu_compile.json. Fails if a program does not compile (VMEM that
overflows, above all), costs more than tests/tpu_compile/baseline.json allows,
or if a control that must fail does not. `--update` writes the baseline anew.
"""

import argparse
import json
import pathlib
import sys
import time

from jspec import slices

slices.prepare()

from tests.tpu_compile import environment, report  # noqa: E402
from tests.tpu_compile.program import compile_for  # noqa: E402
from tests.tpu_compile.programs import PROGRAMS  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
BASELINE = HERE / 'baseline.json'
OUTPUT = HERE.parents[1] / 'build' / 'tpu_compile.json'


def compile_one(program, devices):
  start = time.monotonic()
  try:
    result = report.measure(compile_for(program, devices))
    if program.floor_bytes is not None:
      ratio = result['bytes_accessed'] / program.floor_bytes
      result['over_floor'] = round(ratio, 3)
  except Exception as error:  # The compiler's own; told in the report.
    result = {'error': f'{type(error).__name__}: {error}'[:2000]}
  return result | {'seconds': round(time.monotonic() - start, 2)}


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument('--only', default='', help='part of the names to compile')
  parser.add_argument('--update', action='store_true')
  flags = parser.parse_args()
  programs = [p for p in PROGRAMS if flags.only in p.name]
  baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}

  # --- Compile ---------------------------------------------------------------
  results, num_faults = {}, 0
  for topology in environment.TOPOLOGIES:
    devices = slices.find(topology).devices
    for program in programs:
      if topology not in (program.topologies or environment.TOPOLOGIES):
        continue
      result = compile_one(program, devices)
      results.setdefault(program.name, {})[topology] = result
      expected = baseline.get(program.name, {}).get(topology)
      if flags.update:
        expected = result
      faults = report.judge(program, result, expected)
      num_faults += len(faults)
      state = 'FAIL' if faults else 'ok'
      print(f'{state:4} {topology:11} {program.name} {result["seconds"]} s')
      for fault in faults:
        print(f'     {fault}')

  # --- Report ----------------------------------------------------------------
  OUTPUT.parent.mkdir(exist_ok=True)
  OUTPUT.write_text(json.dumps(results, indent=2, sort_keys=True) + '\n')
  print(f'{len(results)} programs, {num_faults} faults; see {OUTPUT}')
  if flags.update:
    kept = {
      name: {
        topology: {key: result[key] for key in report.COMPARED}
        for topology, result in by_topology.items()
        if 'error' not in result
      }
      for name, by_topology in results.items()
      if not name.startswith('control_')
    }
    if flags.only:
      kept = baseline | kept
    BASELINE.write_text(json.dumps(kept, indent=2, sort_keys=True) + '\n')
  elif not flags.only:
    for name in report.stale(baseline, {p.name for p in PROGRAMS}):
      print(f'FAIL {name} is in the baseline only: run with --update')
      num_faults += 1
  return int(num_faults > 0)


if __name__ == '__main__':
  sys.exit(main())
