# SPDX-License-Identifier: MIT
"""Who did what: launches of an engine, each under the name that ran it.

A launch counts where it did nothing but rounds. Its seconds are those from when
the one before it came back until it did: its time on the device, or that of the
host where that is longer, which then is what a token costs.

The host works while the device runs the launch before, so its seconds are
hidden as long as they are fewer: a `late` launch ended before the host came to
wait for it, and the device had nothing to do until the next was sent, for no
longer than the host worked on that visit.
"""

import collections
import dataclasses
import time
from typing import Any

import numpy as np

from jspec.bench import contenders, replay
from jspec.depth import guard
from jspec.serve import engine as engine_lib


@dataclasses.dataclass
class Sums:
  """What one name did; of its counted launches, but for the last.

  Attributes:
    seconds: of the launches.
    tokens: emitted.
    predicted_s: by the cost table.
    host_s: of the visits in which they came back.
    row_rounds: rounds of rows.
    num_rounds: rounds.
    num_launches: that count.
    by_depth: rounds of rows that verified 0, 1, ... drafts.
    by_form: rounds by 'plain', 'adaptive', 'full'.
    num_back: launches with rounds that came back, counted or not.
  """

  seconds: float = 0.0
  tokens: int = 0
  predicted_s: float = 0.0
  host_s: float = 0.0
  row_rounds: int = 0
  num_rounds: int = 0
  num_launches: int = 0
  by_depth: Any = 0
  by_form: Any = dataclasses.field(default_factory=collections.Counter)
  num_back: int = 0


class Recorder:
  """Takes the launches of one engine.

  Attributes:
    sums: by name.
    rounds: of `full` launches that count, to be replayed.
    host_s: of all visits.
    idle_s: the device had nothing to do for so long at most.
    num_late: launches that ended before the host came to wait for them.
  """

  def __init__(self, engine: engine_lib.Engine, num_warm_up: int = 0):
    self.sums = collections.defaultdict(Sums)
    self.rounds = []
    self.host_s = self.idle_s = 0.0
    self.num_late = 0
    self._engine, self._num_warm_up = engine, num_warm_up
    self._seen = collections.Counter()
    self._names = {}
    self._last = None  # Number of the last launch with rounds, and its return.
    self._counted = None  # Whose launch came back in this visit and counts.

  def on_way(self, name: str) -> int:
    """Launches of a name that were sent and did not come back."""
    return sum(other == name for other in self._names.values())

  def visit(self, name: str, host_s: float = 0.0) -> list[Any]:
    """One `step` of the engine, whose launch runs under a name.

    Args:
      name: of the launch that is sent.
      host_s: what the host did for it before, such as taking in requests.

    Returns:
      Events of the step.
    """
    engine, self._counted = self._engine, None
    engine.on_launch = self._take
    self._names[engine.num_launches + 1] = name
    metrics = engine.metrics
    before, num_late = metrics.host_s, metrics.num_late
    events = engine.step()
    engine.on_launch = None
    host_s += metrics.host_s - before
    self.host_s += host_s
    if metrics.num_late > num_late:
      self.num_late += 1
      self.idle_s += host_s
    if self._counted is not None:
      self.sums[self._counted].host_s += host_s
    return events

  def _take(self, sent, used, num_tokens, _):
    """As `Engine.on_launch`."""
    now, last = time.perf_counter(), self._last
    self._last = (sent.plan.launch, now)
    name = self._names.pop(sent.plan.launch, None)
    # Those before it without a round never call.
    for number in [n for n in self._names if n < sent.plan.launch]:
      del self._names[number]
    if name is None:
      return
    sums = self.sums[name]
    sums.num_back += 1
    did_more = sent.plan.admitted or sent.plan.chunks
    # Nobody waited for one without rounds, so the next has no known begin.
    saw_begin = last is not None and last[0] == sent.plan.launch - 1
    if did_more or not num_tokens or not saw_begin:
      return
    seconds = now - last[1]
    self._seen[name] += 1
    if self._seen[name] <= self._num_warm_up:
      return
    self._counted = name
    costs = sent.choice.costs
    is_plain = sent.choice.form == guard.PLAIN
    draft_s = 0.0 if is_plain else float(costs.draft_s)
    a_round = draft_s + np.asarray(costs.verify_s)
    sums.seconds += seconds
    sums.tokens += num_tokens
    sums.predicted_s += float(np.sum(used.by_budget * a_round))
    sums.row_rounds += int(used.by_depth.sum())
    sums.num_rounds += used.num_rounds
    sums.num_launches += 1
    sums.by_depth = sums.by_depth + used.by_depth
    sums.by_form[sent.choice.form] += used.num_rounds
    if name == contenders.FULL:
      self.rounds.append(replay.make(costs, used))


def figures(sums: Sums) -> dict[str, Any]:
  """Figures of one name that need no other, for JSON."""
  return {
    'tokens_per_second': sums.tokens / sums.seconds,
    'tokens_per_round': sums.tokens / sums.row_rounds,
    'rounds_by_depth': np.asarray(sums.by_depth).tolist(),
    'share_at_depth_0': float(sums.by_depth[0] / sums.row_rounds),
    'rounds_by_form': dict(sums.by_form),
    'mean_rows': sums.row_rounds / sums.num_rounds,
    'predicted_over_measured': sums.predicted_s / sums.seconds,
    'host_share': sums.host_s / sums.seconds,
    'host_ms_per_launch': 1000 * sums.host_s / sums.num_launches,
    'num_launches': sums.num_launches,
  }
