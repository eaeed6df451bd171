# SPDX-License-Identifier: MIT
"""A trace of some steps for xprof, in WORKDIR/profile.

Spans of the device's work carry the scopes of the step (`target`, `draft` with
`loss` inside, `optimizer`); the host's carry the step's number and the phases
of `goodput`. The steps before are waited for, so that the trace holds the
wanted ones alone.
"""

import contextlib
import pathlib
from collections.abc import Callable, Iterator

import jax

from jspec.train import settings
from jspec.typing import PyTree

FOLDER = 'profile'


class Trace:
  """Traces the steps that the config names; none of them costs nothing."""

  def __init__(
    self,
    config: settings.ProfileConfig,
    workdir: pathlib.Path,
    *,
    on_message: Callable[[str], None] = print,
  ):
    """Nothing starts yet."""
    self._steps = range(config.start, config.start + config.num_steps)
    self._folder = workdir / FOLDER
    self._on_message = on_message
    self._first = None
    self._last = None

  @contextlib.contextmanager
  def step(self, number: int, state: PyTree) -> Iterator[None]:
    """Makes step `number` inside; `state` is what the step before gives."""
    is_wanted = number in self._steps
    is_on = self._first is not None
    if is_on and not is_wanted:
      jax.block_until_ready(state)
      self.close()
    elif is_wanted and not is_on:
      jax.block_until_ready(state)
      options = jax.profiler.ProfileOptions()
      options.python_tracer_level = 0  # Spans with names say more.
      jax.profiler.start_trace(self._folder, profiler_options=options)
      self._first = number
    if is_wanted:
      self._last = number
    with jax.profiler.StepTraceAnnotation('train', step_num=number):
      yield

  def close(self) -> None:
    """Writes what was traced, if a trace is on."""
    if self._first is None:
      return
    jax.profiler.stop_trace()
    self._on_message(
      f'train: a trace of steps {self._first} to {self._last} lies in'
      f' {self._folder}'
    )
    self._first = None
