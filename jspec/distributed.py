# SPDX-License-Identifier: MIT
"""Several processes as one: the only place that starts `jax.distributed`.

Importing this does nothing. `start` comes before anything that touches a
device; afterwards `jax.devices()` are those of all processes, and
`jax.process_index()` says which one this is.

A process that dies, or is stopped, is missed after `HEARTBEAT_S`; JAX then ends
all the others, whatever they are doing, with pages of log. Process 0 would be
missed at once, before anybody could say what has happened (`lifeline`): where
its address is given, the others speak to it through a `relay`.
"""

import contextlib
import ipaddress
import signal
import socket
import threading
import time
from collections.abc import Iterator

import jax
from jax.sharding import Mesh

from jspec import errors, relay

HEARTBEAT_S = 60
START_S = 300
_PAUSE_S = 0.2


def start(
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> tuple[int, int]:
  """Joins the other processes; returns when all of them are there.

  What is left out is found where the environment says it, as on Cloud TPU,
  Slurm and Kubernetes.

  Args:
    coordinator: host and port, of process 0.
    num_processes: all of them.
    process_id: of this one, from 0.

  Returns:
    Id of this process, and how many there are.

  Raises:
    UserError: a part of it is missing or wrong, or the others did not come
      within `START_S`.
  """
  if coordinator is not None:
    host_of(coordinator)
    if num_processes is None or process_id is None:
      raise errors.UserError(
        f'coordinator {coordinator} without the number of processes or the id'
        ' of this one: give both, or leave all three out where the environment'
        ' says them'
      )
  if process_id is not None and not 0 <= process_id < (num_processes or 0):
    raise errors.UserError(
      f'process {process_id} of {num_processes}: ids go from 0 to the number of'
      ' processes, less one'
    )
  # JAX would keep the signal for itself.
  is_main = threading.current_thread() is threading.main_thread()
  before = signal.getsignal(signal.SIGTERM)
  try:
    there = _relayed(coordinator) if process_id else coordinator
    # Devices of several processes on CPUs exchange what they compute over TCP.
    jax.config.update('jax_cpu_collectives_implementation', 'gloo')
    jax.distributed.initialize(
      there,
      num_processes,
      process_id,
      initialization_timeout=START_S,
      heartbeat_timeout_seconds=HEARTBEAT_S,
      coordinator_bind_address=_bound(coordinator),
    )
  except (ValueError, RuntimeError) as error:
    raise errors.UserError(
      f'cannot join the other processes ({error}): give --coordinator'
      ' HOST:PORT, --num-processes and --process-id, the same first two'
      ' everywhere'
    ) from error
  finally:
    if is_main and before is not None:
      signal.signal(signal.SIGTERM, before)
  return jax.process_index(), jax.process_count()


def mesh(num_devices: int | None = None) -> Mesh:
  """The first devices on one axis, `model`; None: those of all processes.

  Raises:
    UserError: there are not so many.
  """
  there = jax.devices()
  if num_devices is None:
    num_devices = len(there)
  if num_devices > len(there):
    raise errors.UserError(
      f'{num_devices} devices are wanted and JAX sees {len(there)}: take that'
      ' many at most'
    )
  return jax.make_mesh((num_devices,), ('model',), devices=there[:num_devices])


@contextlib.contextmanager
def on_host() -> Iterator[None]:
  """Lets arrays that are made inside lie in the memory of the host."""
  try:
    place = jax.local_devices(backend='cpu')[0]
  except RuntimeError:  # JAX was told to see nothing but an accelerator.
    yield
    return
  with jax.default_device(place):
    yield


def host_of(coordinator: str) -> str:
  """The host of `host:port`.

  Raises:
    UserError: it is none.
  """
  host, colon, port = coordinator.rpartition(':')
  if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
    raise errors.UserError(
      f'coordinator {coordinator!r} is no HOST:PORT, such as 10.0.0.2:8476'
    )
  return host.strip('[]')


def own_host() -> str:
  """The address by which other hosts of the network reach this one."""
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      # Nothing is sent; the system only picks the interface.
      probe.connect(('192.0.2.1', 9))
      return probe.getsockname()[0]
    except OSError:
      return '127.0.0.1'


def _relayed(coordinator):
  """Where a process that is not the first connects to instead."""
  if coordinator is None:
    return None
  there = host_of(coordinator), int(coordinator.rpartition(':')[2])
  ends = time.monotonic() + START_S
  # JAX would end this process with pages of log if it did not come.
  while True:
    try:
      socket.create_connection(there, timeout=START_S).close()
      return relay.start(*there)
    except OSError as error:
      if time.monotonic() > ends:
        raise RuntimeError(f'{coordinator}: {error}') from error
      time.sleep(_PAUSE_S)


def _bound(coordinator):
  """Where process 0 listens: nobody else's business if all are on one host."""
  if coordinator is None:
    return None
  try:
    is_here = ipaddress.ip_address(host_of(coordinator)).is_loopback
  except ValueError:
    is_here = host_of(coordinator) == 'localhost'
  return coordinator if is_here else None
