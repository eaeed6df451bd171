# SPDX-License-Identifier: MIT
"""Processes that exchange numbers until one of them ends, for `ending_test`.

python -m tests.cli.ending WHAT [flags of `jspec train`]

WHAT is `run`, or how the process ends at its third step: `kill` by SIGKILL,
`fail` with an error of a user, `break` with one of the program.
"""

import argparse
import os
import signal
import sys

from jspec import errors
from jspec.cli import processes
from tests import starting

STEPS = 20
ENDS_AT = 3
TIMEOUT_S = 200


def run(whats):
  """What each process printed, and its exit code."""
  where = starting.coordinator()
  arguments = [
    [
      what,
      f'--coordinator={where}',
      f'--num-processes={len(whats)}',
      f'--process-id={process}',
    ]
    for process, what in enumerate(whats)
  ]
  started = starting.start('tests.cli.ending', arguments, 1)
  return starting.ended(started, TIMEOUT_S)


def _main(what, *flags):
  parser = argparse.ArgumentParser()
  processes.add(parser)
  args = parser.parse_args(flags)
  with processes.joined(args):
    import numpy as np
    from jax.experimental import multihost_utils

    for step in range(STEPS):
      if step == ENDS_AT and what == 'kill':
        os.kill(os.getpid(), signal.SIGKILL)
      if step == ENDS_AT and what == 'fail':
        raise errors.UserError(f'process {args.process_id} has\nno "room": ä')
      if step == ENDS_AT and what == 'break':
        raise ValueError('of the program')
      found = multihost_utils.process_allgather(np.full(1, step))
      assert (found == step).all()


if __name__ == '__main__':
  _main(*sys.argv[1:])
