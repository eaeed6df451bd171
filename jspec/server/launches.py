# SPDX-License-Identifier: MIT
"""`Launches`: how full launches were, as the engine reports them.

  rows     a bucket of 16 that 11 rows run in is 11/16 full
  nodes    a budget of 32 nodes that 25 nodes are verified in wastes 7

Called in the engine's thread (`Engine.on_launch`); others only read sums.
"""

from typing import Any

import numpy as np


class Launches:
  """Sums over launches.

  Attributes:
    num_by_bucket: launches of each number of rows that is compiled.
    rows_by_bucket: rows that ran in them.
    nodes: that were verified.
    padded_nodes: places for nodes that held none.
  """

  def __init__(self, row_buckets: tuple[int, ...]):
    self.num_by_bucket = dict.fromkeys(row_buckets, 0)
    self.rows_by_bucket = dict.fromkeys(row_buckets, 0)
    self.nodes = self.padded_nodes = 0
    self._sizes = {}  # Of budgets, by program and bucket: they never change.

  def __call__(
    self, sent: Any, used: Any, num_tokens: int, seconds: float | None
  ) -> None:
    """Takes in a launch (`serve.sent.Sent`, `serve.device.Used`)."""
    del num_tokens, seconds
    choice = sent.choice
    bucket = next(b for b in self.num_by_bucket if b >= choice.num_rows)
    self.num_by_bucket[bucket] += 1
    self.rows_by_bucket[bucket] += choice.num_rows
    key = choice.program, bucket
    if key not in self._sizes:
      self._sizes[key] = np.asarray(choice.costs.nodes)
    held = int(np.dot(self._sizes[key], used.by_budget))
    nodes = int(np.dot(np.arange(1, len(used.by_depth) + 1), used.by_depth))
    self.nodes += nodes
    self.padded_nodes += max(held - nodes, 0)


class Compiles:
  """Counts what XLA compiles from now on; in a server that runs, nothing.

  Attributes:
    num: programs.
  """

  _EVENT = '/jax/core/compile/backend_compile_duration'

  def __init__(self):
    self.num = 0

  def start(self) -> None:
    """Listens, for as long as the process lives."""
    import jax  # The server needs nothing else of it.

    jax.monitoring.register_event_duration_secs_listener(self._hear)

  def _hear(self, event: str, duration: float, **named: Any) -> None:
    del duration, named
    self.num += event == self._EVENT
