# SPDX-License-Identifier: MIT
"""Where the time of a run goes, over all its starts.

  goodput = seconds in steps / seconds since the first start

  start     before the first step: documents, store, restoring
  compile   tracing and compiling, wherever it happens
  data      a batch was not there and the device had nothing else to do
  steps     training, as far as it was kept
  evaluate  held-out batches and decoding
  save      checkpoints and the export
  repeat    steps that an earlier start made and lost, and this one makes again
  down      nobody ran, or ran and left no row

The host's clock is cut into phases, so that they add up. A step is on its way
while the next batch is fetched, so waiting for a batch counts as `data` only
where the step before was done when the batch came: an upper bound.

The row of an evaluation holds the sums up to it, and a later start goes on from
those (`Clock.resume`). What came before `loop.run`, loading the target, is not
seen in the first start, and counts as `down` in later ones.
"""

import contextlib
import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

PHASES = (
  *('start', 'compile', 'data', 'steps', 'evaluate', 'save'),
  *('repeat', 'down'),
)
_COMPILING = '/jax/core/compile/'


class Clock:
  """Sums up seconds by phase; begins in 'start'."""

  def __init__(self):
    """Starts; `close` ends the listening for compilations."""
    self._seconds = dict.fromkeys(PHASES, 0.0)
    self._phase = 'start'
    self._since = time.monotonic()
    self._began_at = time.time()
    self._compiled: list[tuple[float, float]] = []
    jax.monitoring.register_event_time_span_listener(self._hear)

  def close(self) -> None:
    """Ends the listening."""
    jax.monitoring.unregister_event_time_span_listener(self._hear)

  def enter(self, phase: str) -> None:
    """What the time from here on counts as."""
    now = time.monotonic()
    passed = now - self._since
    compiling = min(_union(self._compiled), passed)
    self._seconds[self._phase] += passed - compiling
    self._seconds['compile'] += compiling
    self._phase, self._since, self._compiled = phase, now, []

  @contextlib.contextmanager
  def during(self, phase: str) -> Iterator[None]:
    """Another phase for a while; shows as a span in a trace."""
    before = self._phase
    self.enter(phase)
    try:
      with jax.profiler.TraceAnnotation(phase):
        yield
    finally:
      self.enter(before)

  def take(self, batches: Any, running: Any) -> Any:
    """The next batch.

    Args:
      batches: where it comes from; has `__next__`.
      running: an array of the step before, or None; as long as it is not
        computed the device has work.
    """
    before = self._phase
    with self.during('data'):
      batch = next(batches)
      if running is not None and not running.is_ready():
        self._phase = before
    return batch

  def resume(self, rows: Sequence[dict[str, Any]], step: int) -> None:
    """Adds what earlier starts took.

    Args:
      rows: of the metrics file, before those behind `step` are dropped.
      step: the one this start goes on from.
    """
    known = [row for row in rows if row['step'] <= step and _SUMS in row]
    last = known[-1] if known else {'step': 0, _SUMS: {}}
    for phase, seconds in last[_SUMS].items():
      self._seconds[phase] += seconds
    kept, lost = (
      sum(row.get('seconds', 0.0) for row in rows if begin < row['step'] <= end)
      for begin, end in ((last['step'], step), (step, float('inf')))
    )
    self._seconds['steps'] += kept
    self._seconds['repeat'] += lost
    if known:
      away = self._began_at - _read_time(last[_TIME])
      self._seconds['down'] += max(away - kept - lost, 0.0)

  def row(self) -> dict[str, Any]:
    """What the row of an evaluation says of it."""
    self.enter(self._phase)
    now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
    return {
      'goodput': self.share('steps'),
      _SUMS: dict(self._seconds),
      _TIME: now.isoformat(),
    }

  def share(self, phase: str) -> float:
    """Of all seconds so far."""
    return self._seconds[phase] / max(sum(self._seconds.values()), 1e-9)

  def line(self) -> str:
    """All shares, for a person."""
    self.enter(self._phase)
    total = sum(self._seconds.values())
    others = sorted(
      (name for name in PHASES if name != 'steps'), key=self.share, reverse=True
    )
    shown = [
      f'{name} {100 * self.share(name):.1f} %'
      for name in others
      if self.share(name) >= 5e-4
    ]
    return (
      f'train: goodput {100 * self.share("steps"):.1f} % of {total:.0f} s'
      + ''.join(f', {part}' for part in shown)
    )

  def _hear(self, event, start_time, end_time, **named):
    del named
    if event.startswith(_COMPILING):
      self._compiled.append((start_time, end_time))


_SUMS = 'goodput_seconds'
_TIME = 'written_at'


def _union(spans):
  """Seconds that some span covers: compilations lie inside one another."""
  total, reached = 0.0, float('-inf')
  for begin, end in sorted(spans):
    total += max(end - max(begin, reached), 0.0)
    reached = max(reached, end)
  return total


def _read_time(text):
  return datetime.datetime.fromisoformat(text).timestamp()
