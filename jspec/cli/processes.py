# SPDX-License-Identifier: MIT
"""Flags for processes that train together, and how they begin and end.

Every host runs the same command. When one of them fails or is gone, the others
end with a line that says why, and the same command goes on from the newest
checkpoint.
"""

import argparse
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from jspec import errors
from jspec.cli import hosts

# Own errors are told first, and those of another before what they caused here.
_OWN_S, _OTHERS_S = 1.0, 5.0
# Process 0 has JAX's coordinator: it leaves last, but does not wait for ever.
_LAST_S = 5.0


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

  What is raised inside ends all processes, each with a line and at once: JAX
  would wait for the others, who may be gone.

  Raises:
    UserError: flags that do not go together, or processes that do not come.
  """
  found = hosts.started(args)
  if found is None:
    yield 1
    return
  from jspec import lifeline

  end = _End(found.process)
  line = end.line = lifeline.tie(found.host, end.of_another)
  try:
    yield found.num_processes
  except errors.UserError as error:
    end.of_this(str(error))
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    hosts.leave(130)
  except SystemExit:  # All of them: the run is saved.
    line.close()
    raise
  except BaseException as error:  # noqa: BLE001
    # Where another has ended, that is the cause, and said by `of_another`.
    time.sleep(_OTHERS_S)
    traceback.print_exc()
    end.of_this(f'{type(error).__name__}: {error}', code=1)
  line.close()


class _End:
  """How this process ends: once, with the first cause it knows of."""

  line: Any  # `lifeline.Lifeline`

  def __init__(self, process: int):
    self._process = process
    self._lock = threading.Lock()  # Whoever has it ends the process.

  def of_this(self, text: str, code: int = 2) -> None:
    """Ends all processes with an error of this one."""
    text = ' '.join(text.split('\n'))
    self._lock.acquire()
    print(f'error: {text}', file=sys.stderr, flush=True)
    self.line.fail(self._process, text)
    self._leave(code)

  def of_another(self, process: int, text: str | None) -> None:
    """Ends this process after another one, which may have said why."""
    # JAX may end the others of process 0, if it is gone, with pages of log:
    # nobody has time for an error of their own.
    if process or text is not None:
      time.sleep(_OWN_S)
    if text is None:
      text = (
        f'process {process} is gone: see its output; the same command goes on'
        ' from the newest checkpoint'
      )
    else:
      text = f'process {process}: {text}'
    self._lock.acquire()
    print(f'error: {text}', file=sys.stderr, flush=True)
    self._leave(2)

  def _leave(self, code):
    if not self._process:
      self.line.wait_for_others(_LAST_S)
    hosts.leave(code)
