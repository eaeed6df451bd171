# SPDX-License-Identifier: MIT
"""Flags for processes that train together, and how they begin and end.

Every host runs the same command. When one of them is gone, the others end with
a line that says so, and the same command goes on from the newest checkpoint.
"""

import argparse
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator

from jspec import errors
from jspec.cli import hosts

# Exit code of a process that another one left alone.
LOST = 3
# Own errors are told first, and the loss of another before what it caused here.
_OWN_S, _OTHERS_S = 1.0, 5.0


def add(parser: argparse.ArgumentParser) -> None:
  """Adds the flags, as a group of their own."""
  hosts.add_processes(
    parser.add_argument_group('several hosts'),
    'train over all devices of several processes',
    'writes metrics and exports',
  )


@contextlib.contextmanager
def joined(args: argparse.Namespace) -> Iterator[int]:
  """Joins the other processes, if there are any; gives how many there are.

  What is raised inside ends the process at once where there are others: JAX
  would wait for them, who may be gone.

  Raises:
    UserError: flags that do not go together, or processes that do not come.
  """
  found = hosts.started(args)
  if found is None:
    yield 1
    return
  from jspec import lifeline

  line = lifeline.tie(found.host, _lost)
  try:
    yield found.num_processes
  except errors.UserError as error:
    text = ' '.join(str(error).split('\n'))
    print(f'error: {text}', file=sys.stderr, flush=True)
    if found.process == 0:
      time.sleep(_OWN_S)  # Where all have it, all are to say it.
    hosts.leave(2)
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    hosts.leave(130)
  except SystemExit:  # All of them: the run is saved.
    line.close()
    raise
  except BaseException:  # noqa: BLE001
    # Where another is gone, that is the cause, and said by `_lost`.
    time.sleep(_OTHERS_S)
    traceback.print_exc()
    hosts.leave(1)
  line.close()


def _lost(process):
  # JAX ends the others of process 0, where its coordinator is, as soon as it
  # can, with pages of log; nobody has time for an error of their own.
  if process:
    time.sleep(_OWN_S)
  print(
    f'error: process {process} is gone: see its output; the same command goes'
    ' on from the newest checkpoint',
    file=sys.stderr,
    flush=True,
  )
  os._exit(LOST)
