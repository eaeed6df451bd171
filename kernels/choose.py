# SPDX-License-Identifier: MIT
"""Which implementation of an operation runs.

None takes the best there is here, a name takes that one or says why it cannot,
a list takes the first that can. A named one never falls back silently.
"""

import contextlib
import contextvars
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

Implementations = Mapping[str, Callable[..., Any]]
# Platform and number of devices that are compiled for, if not those here.
_ELSEWHERE: contextvars.ContextVar[tuple[str, int] | None]
_ELSEWHERE = contextvars.ContextVar('elsewhere', default=None)


@contextlib.contextmanager
def compiling_for(platform: str, num_devices: int) -> Iterator[None]:
  """What is traced inside chooses as on other devices than those here.

  Args:
    platform: 'tpu', 'gpu' or 'cpu'.
    num_devices: that a process there sees.
  """
  token = _ELSEWHERE.set((platform, num_devices))
  try:
    yield
  finally:
    _ELSEWHERE.reset(token)


def machine() -> tuple[str, int]:
  """Platform and number of devices that are compiled for."""
  return _ELSEWHERE.get() or (jax.default_backend(), jax.device_count())


def run(
  implementations: Implementations,
  implementation: str | Sequence[str] | None,
  *args: Any,
  **named: Any,
) -> Any:
  """Calls an implementation with the arguments.

  Args:
    implementations: all there are, by name; 'xla' among them.
    implementation: None, a name or a list of names.
    *args: for the implementation.
    **named: for the implementation.

  Raises:
    ValueError: no such implementation.
    NotImplementedError: none of those named can do this.
  """
  if implementation is None:
    implementation = best(implementations)
  if isinstance(implementation, str):
    return _find(implementations, implementation)(*args, **named)
  functions = [_find(implementations, name) for name in implementation]
  refusals = []
  for function in functions:
    try:
      return function(*args, **named)
    except NotImplementedError as refusal:
      refusals.append(str(refusal))
  raise NotImplementedError(
    f'none of implementation={list(implementation)} can do this: '
    + '; '.join(refusals)
  )


def late(module: str, name: str) -> Callable[..., Any]:
  """A function of a module that is imported when it is first called.

  Pallas takes a third of a second to import, and most programs run XLA.
  """

  def call(*args, **named):
    return getattr(importlib.import_module(module), name)(*args, **named)

  return call


def best(implementations: Implementations) -> tuple[str, ...]:
  """What None stands for: 'tpu' where it can on a single TPU, else 'xla'.

  XLA spreads its own operations over a mesh; a Pallas kernel must be called
  under `shard_map` there, whose shards are single TPUs. The kernels for GPUs
  are taken by name only.
  """
  mesh = jax.sharding.get_abstract_mesh()
  is_shard = not mesh.empty and mesh.are_all_axes_manual
  platform, num_devices = machine()
  is_one_tpu = platform == 'tpu' and (is_shard or num_devices == 1)
  return ('tpu', 'xla') if is_one_tpu and 'tpu' in implementations else ('xla',)


def _find(implementations, name):
  if name not in implementations:
    raise ValueError(
      f'implementation={name!r}: choose from {sorted(implementations)}'
    )
  return implementations[name]
