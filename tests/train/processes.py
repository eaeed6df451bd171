# SPDX-License-Identifier: MIT
"""Processes that train a tiny drafter together, for `processes_test`.

python -m tests.train.processes FOLDER CHANGES WHAT [flags of `jspec train`]

CHANGES is JSON; WHAT is `run`, or what happens at step N: with `kill N` the
process ends itself, with `term N` it sends itself a SIGTERM, with `full N` none
of its files may grow from then on.
"""

import argparse
import json
import os
import pathlib
import resource
import signal
import sys

from tests import starting

TIMEOUT_S = 400


def start(folder, num_processes, num_devices, changes=None, what=None, of=None):
  """Starts processes that share `num_devices` evenly.

  Args:
    folder: has the answers; the workdir is its `run`.
    num_processes: how many.
    num_devices: all of them.
    changes: of `tiny.config`.
    what: by process, what else it does at a step.
    of: by process, further changes.
  """
  flags = []
  if num_processes > 1:
    flags = [
      f'--coordinator={starting.coordinator()}',
      f'--num-processes={num_processes}',
    ]
  arguments = [
    [
      str(folder),
      json.dumps({**(changes or {}), **(of or {}).get(process, {})}),
      (what or {}).get(process, 'run'),
      *flags,
      *([f'--process-id={process}'] if flags else []),
    ]
    for process in range(num_processes)
  ]
  return starting.start(
    'tests.train.processes', arguments, num_devices // num_processes
  )


def ended(started):
  """As `starting.ended`."""
  return starting.ended(started, TIMEOUT_S)


# --- in a process


def _at(what):
  word, _, number = what.partition(' ')

  def on_progress(step, metrics):
    del metrics
    if word == 'run' or step != int(number):
      return
    if word == 'full':
      resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
      return
    os.kill(os.getpid(), signal.SIGKILL if word == 'kill' else signal.SIGTERM)

  return on_progress


def _main(folder, changes, what, *flags):
  from jspec.cli import processes

  parser = argparse.ArgumentParser()
  processes.add(parser)
  with processes.joined(parser.parse_args(flags)):
    from tests.train import tiny

    tiny.train(
      pathlib.Path(folder),
      on_progress=_at(what),
      on_message=lambda text: print(text, flush=True),
      **json.loads(changes),
    )


if __name__ == '__main__':
  _main(*sys.argv[1:])
