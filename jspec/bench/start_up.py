# SPDX-License-Identifier: MIT
"""How long an engine took to be ready, and how much of it came from disk."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax

from jspec.serve import engine as engine_lib

_HIT = '/jax/compilation_cache/cache_hits'


class Clock:
  """Seconds, and programs found on disk, while `running`."""

  def __init__(self):
    self.seconds = 0.0
    self.num_hits = 0

  @contextlib.contextmanager
  def running(self) -> Iterator[None]:
    """Counts what happens inside."""

    def count(name: str, **_: Any) -> None:
      self.num_hits += name == _HIT

    began = time.perf_counter()
    jax.monitoring.register_event_listener(count)
    try:
      yield
    finally:
      jax.monitoring.unregister_event_listener(count)
      self.seconds = time.perf_counter() - began


def figures(engine: engine_lib.Engine, clock: Clock) -> dict[str, Any]:
  """For JSON.

  Args:
    engine: that was started.
    clock: ran meanwhile.
  """
  num_programs = len(engine.programs)
  num_from_disk = engine.programs.num_loaded + clock.num_hits
  return {
    'seconds': clock.seconds,
    'compile_s': engine.metrics.compile_s,
    'warm_up_s': engine.metrics.warm_up_s,
    'num_programs': num_programs,
    # Tiny programs of the loading are kept too, and no program twice.
    'num_from_disk': min(num_from_disk, num_programs),
    'has_measured_costs': engine.metrics.has_measured,
  }


def line(found: dict[str, Any]) -> str:
  """For a person."""
  what = 'measured' if found['has_measured_costs'] else 'from disk'
  return (
    f'ready in {found["seconds"]:.1f} s: {found["num_programs"]} programs in'
    f' {found["compile_s"]:.1f} s ({found["num_from_disk"]} from disk), costs'
    f' {what} in {found["warm_up_s"]:.1f} s'
  )
