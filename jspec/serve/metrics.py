# SPDX-License-Identifier: MIT
"""What an engine has done so far."""

import dataclasses
from typing import Any

import numpy as np

from jspec.serve import confidence as confidence_lib
from jspec.serve import device, pool_use
from jspec.serve import scheduler as scheduler_lib


@dataclasses.dataclass
class Drafted:
  """Counts of the requests that chose one of several drafters.

  Attributes:
    num_rounds: rounds of their rows.
    num_tokens: emitted.
    num_drafted: draft nodes verified at each depth.
    num_accepted: drafts accepted at each depth.
  """

  num_rounds: int
  num_tokens: int
  num_drafted: np.ndarray
  num_accepted: np.ndarray


@dataclasses.dataclass
class Metrics:
  """Counts and seconds since the engine was made.

  Attributes:
    num_drafts: most draft nodes of a row, the length of the counts by depth.
    confidence: how far drafters are trusted; its `figures` say at which
      temperatures, and how calibrated that is.
    compile_s: seconds to compile every program.
    warm_up_s: seconds to run each of them once, and measurements.
    has_measured: whether costs were measured then, and not given.
    host_s: seconds the host planned, sent and took in launches.
    wait_s: seconds it waited for the device.
    num_late: launches that ended before the host came to wait for them, so that
      the device may have had nothing to do.
    num_launches: launches of rounds by form.
    num_by_depth: rounds of rows that verified 0, 1, ... drafts.
    num_split: of them those whose drafts the host judged.
    num_rounds: rounds of rows: one row's part of a round counts 1.
    num_tokens: emitted.
    num_drafted: draft nodes verified at each depth.
    num_accepted: drafts accepted at each depth.
    num_broken: drafts that were dropped since their drafter broke.
    num_failed: requests whose target gave no finite logit.
    by_drafter: the same by name, of engines that serve several drafters.
    scheduler: whose pool `pool` tells of.
    drafter_problem: why the drafter on the host was switched off; empty while
      it drafts.
  """

  num_drafts: int
  confidence: confidence_lib.Confidence | None = None
  compile_s: float = 0.0
  warm_up_s: float = 0.0
  has_measured: bool = False
  host_s: float = 0.0
  wait_s: float = 0.0
  num_late: int = 0
  num_launches: dict[str, int] = dataclasses.field(default_factory=dict)
  num_split: int = 0
  num_by_depth: np.ndarray = None
  num_rounds: int = 0
  num_tokens: int = 0
  num_drafted: np.ndarray = None
  num_accepted: np.ndarray = None
  num_broken: int = 0
  num_failed: int = 0
  by_drafter: dict[str, Drafted] = dataclasses.field(default_factory=dict)
  scheduler: scheduler_lib.Scheduler | None = None
  drafter_problem: str = ''

  def __post_init__(self):
    for name, size in (
      ('num_drafted', self.num_drafts),
      ('num_accepted', self.num_drafts),
      ('num_by_depth', self.num_drafts + 1),
    ):
      if getattr(self, name) is None:
        setattr(self, name, np.zeros((size,), np.int64))

  @property
  def pool(self) -> pool_use.PoolUse:
    """How full the pool is, and what the prefix cache saved."""
    return pool_use.of(self.scheduler)

  @property
  def tokens_per_round(self) -> float:
    """Emitted tokens a round of a row; NaN before the first."""
    if not self.num_rounds:
      return float('nan')
    return self.num_tokens / self.num_rounds

  def launched(self, form: str, used: device.Used) -> None:
    """Counts a launch that came back."""
    self.num_launches[form] = self.num_launches.get(form, 0) + 1
    self.num_by_depth += used.by_depth

  def answered(self, answer: device.Answer, drafter: str | None = None) -> None:
    """Counts what a row of a launch did, also by its drafter if it has a name.

    Args:
      answer: of the row.
      drafter: in full, as `members.name` gives it.
    """
    if drafter is not None:
      self._count(answer, drafter)
    self.num_rounds += answer.num_rounds
    self.num_tokens += len(answer.tokens)
    self.num_drafted += answer.num_drafted
    self.num_accepted += answer.num_accepted
    self.num_broken += answer.num_broken
    self.num_failed += answer.has_failed

  def drafters(self) -> dict[str, dict[str, Any]]:
    """`by_drafter` as JSON values."""
    return {
      name: {
        'num_rounds': of.num_rounds,
        'num_tokens': of.num_tokens,
        'num_drafted': of.num_drafted.tolist(),
        'num_accepted': of.num_accepted.tolist(),
      }
      for name, of in self.by_drafter.items()
    }

  def _count(self, answer, name):
    if name not in self.by_drafter:
      nothing = np.zeros((self.num_drafts,), np.int64)
      self.by_drafter[name] = Drafted(0, 0, nothing, nothing.copy())
    of = self.by_drafter[name]
    of.num_rounds += answer.num_rounds
    of.num_tokens += len(answer.tokens)
    of.num_drafted += answer.num_drafted
    of.num_accepted += answer.num_accepted
