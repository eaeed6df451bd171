# SPDX-License-Identifier: MIT
"""Counts what XLA compiles, however small.

An operation outside `jit` compiles a program of its own on first use, as
`jnp.asarray` does for every shape; they all report to `jax.monitoring`, and a
program found in JAX's own memory does not.
"""

import contextlib
from collections.abc import Iterator

import jax

_EVENT = '/jax/core/compile/backend_compile_duration'


@contextlib.contextmanager
def counted(*, forget: bool = True) -> Iterator[list[str]]:
  """Names of the programs that are compiled inside, as they come.

  Args:
    forget: drop JAX's own memory of programs first, so that what something else
      compiled before counts again. `Compiled` objects stay.
  """
  found = []

  def hear(event, duration, **named):
    del duration
    if event == _EVENT:
      found.append(named.get('fun_name', 'unknown'))

  if forget:
    jax.clear_caches()
  jax.monitoring.register_event_duration_secs_listener(hear)
  try:
    yield found
  finally:
    jax.monitoring.unregister_event_duration_listener(hear)
