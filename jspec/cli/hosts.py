# SPDX-License-Identifier: MIT
"""Flags for devices and hosts that serve one target together.

Every host runs the same command. The one with id 0 leads: it has the HTTP port
and takes requests; the others follow it, and end when it does.
"""

import argparse
import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

from jspec import errors
from jspec.cli import options


class Hosts(NamedTuple):
  """What this process is a part of.

  Attributes:
    mesh: devices that share the target out; None: the first one alone.
    link: to the other processes (`serve.meeting.meet`); None: there are none.
    follows: whether another process leads.
  """

  mesh: Any = None
  link: Any = None
  follows: bool = False


class Started(NamedTuple):
  """Processes that found each other.

  Attributes:
    host: an address of process 0; in others it may be one of their own.
    process: id of this one.
    num_processes: all of them.
  """

  host: str
  process: int
  num_processes: int


def add(parser: argparse.ArgumentParser) -> None:
  """Adds the flags, as a group of their own."""
  group = parser.add_argument_group('devices and hosts')
  group.add_argument(
    '--devices',
    type=options.positive,
    metavar='N',
    help='share the target out over N devices of this process (default: 1)',
  )
  add_processes(
    group, 'share it out over all devices of several processes', 'serves HTTP'
  )


def add_processes(group: Any, what: str, first: str) -> None:
  """Adds the flags for several processes.

  Args:
    group: of a parser.
    what: they do.
    first: what the first does besides.
  """
  group.add_argument(
    '--coordinator',
    metavar='HOST:PORT',
    help=f'{what}; an address of the host of process 0 and a free port there',
  )
  group.add_argument(
    '--num-processes', type=options.positive, metavar='N', help='all of them'
  )
  group.add_argument(
    '--process-id', type=int, metavar='I', help=f'of this one; 0 {first}'
  )
  group.add_argument(
    '--all-hosts',
    action='store_true',
    help='the same where the environment says who takes part, as on Cloud TPU',
  )


@contextlib.contextmanager
def joined(args: argparse.Namespace) -> Iterator[Hosts]:
  """Joins the other processes, and leaves them at the end.

  What is raised inside ends the process at once where there are others: JAX
  would wait for them, who may be gone.

  Raises:
    UserError: flags that do not go together, or processes that do not come.
  """
  found = join(args)
  if found.link is None:
    yield found
    return
  try:
    yield found
  except errors.UserError as error:
    line = ' '.join(str(error).split('\n'))
    print(f'error: {line}', file=sys.stderr)
    leave(2)
  except KeyboardInterrupt:
    print('interrupted', file=sys.stderr)
    leave(130)
  except BaseException:  # noqa: BLE001
    traceback.print_exc()
    leave(1)
  if not found.follows:
    found.link.close()


def join(args: argparse.Namespace) -> Hosts:
  """The processes that the flags name, connected; see `joined`."""
  if args.devices is not None and _is_shared(args):
    raise errors.UserError(
      '--devices is of one process: several share the target out over all of'
      ' their devices; leave it out'
    )
  found = started(args)
  if found is None and args.devices in (None, 1):
    return Hosts()
  from jspec import distributed

  if found is None:
    return Hosts(distributed.mesh(args.devices))
  from jspec.serve import meeting

  link = meeting.meet(found.host) if found.num_processes > 1 else None
  return Hosts(distributed.mesh(), link, found.process > 0)


def started(args: argparse.Namespace) -> Started | None:
  """Joins the processes that the flags name; None if they name none.

  Raises:
    UserError: flags that do not go together, or processes that do not come.
  """
  if not _is_shared(args):
    return None
  given = args.coordinator, args.num_processes, args.process_id
  if not args.all_hosts and None in given:
    raise errors.UserError(
      'several processes need --coordinator, --num-processes and --process-id'
      ' (or --all-hosts where the environment says them)'
    )
  from jspec import distributed

  process, num_processes = distributed.start(*given)
  host = (
    distributed.own_host()
    if args.coordinator is None
    else distributed.host_of(args.coordinator)
  )
  return Started(host, process, num_processes)


def _is_shared(args):
  given = args.coordinator, args.num_processes, args.process_id
  return args.all_hosts or any(part is not None for part in given)


@contextlib.contextmanager
def loading(hosts: Hosts) -> Iterator[None]:
  """Loads models into the memory of the host, if they are shared out later.

  The first device need not have room for all of them.
  """
  if hosts.mesh is None:
    yield
    return
  from jspec import distributed

  with distributed.on_host():
    yield


def follow(
  hosts: Hosts, loaded: Any, drafter: Any, settings: Any, *, has_compiler: bool
) -> None:
  """Follows the leader until it ends.

  Args:
    hosts: of `join`.
    loaded: the target (`loading.LoadedTarget`).
    drafter: who drafts, or None.
    settings: `serve.settings.Settings`.
    has_compiler: whether the leader has a compiler of grammars.

  Raises:
    UserError: the leader runs something else, or is gone.
  """
  from jspec.cli import progress
  from jspec.serve import following

  # Whoever stops all hosts at once lets the leader finish its requests first.
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  with progress.Wait('following', unit='programs') as wait:
    following.follow(
      loaded.model,
      drafter,
      settings,
      hosts.mesh,
      hosts.link,
      has_compiler=has_compiler,
      on_progress=lambda done, total, name: wait.update(done, total),
    )


def leave(code: int) -> None:
  """Ends the process at once, after what it said."""
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(code)
