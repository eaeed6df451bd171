# SPDX-License-Identifier: MIT
"""What rounds cost on this device: measured at start-up, then kept up to date.

An entry is (rows bucket, nodes of the compiled budget, mean context a row)
with its time; a dozen suffice, `surface` fills the rest. Timed rounds of live
traffic replace what they hit: the median of an entry's last ones counts. A
round that compiled or waited for the garbage collector takes many times as
long as expected and is ignored, unless the next ones do so too.

  table = CostTable(Key('cpu', 'smollm2_135m', 'dflash', '0.1.0'))
  table.add(rows=4, nodes=32, context=256, seconds=0.105)      # warm-up
  table.update(rows=4, nodes=32, context=300, seconds=0.110)   # live
  table.costs(rows=4, context=280, budgets=(4, 8, 16, 32))     # for the plan

Nothing here measures: the engine does. On the host, without a device.
"""

import collections
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from jspec import errors
from jspec.depth import costs as costs_lib
from jspec.depth import surface

NUM_RECENT = 9
OUTLIER = 4.0  # times the expected seconds
NUM_BELIEVED = 3  # outliers in a row that are no outliers
REFIT_EVERY = 32  # live rounds


@dataclasses.dataclass(frozen=True)
class Key:
  """What times depend on; a table of another key is of no use.

  Attributes:
    device_kind: as JAX names it.
    target: name of the target.
    drafter: name of the drafter.
    version: of jspec.
    shapes: what the rounds were compiled for; empty if only the rest matters.
  """

  device_kind: str
  target: str
  drafter: str
  version: str
  shapes: str = ''


class CostTable:
  """Measured seconds of verifying and of proposing.

  Attributes:
    key: what they depend on; None until somebody says who knows the models.
  """

  def __init__(self, key: Key | None = None):
    self.key = key
    self._verify = _Times()
    self._draft = _Times()

  def add(
    self, rows: int, nodes: int, context: int | float, seconds: int | float
  ) -> None:
    """Takes a warm-up measurement of verifying a budget; believed as it is."""
    _check(rows, nodes, context, seconds, least_s=surface._SMALLEST)
    self._verify.add((rows, nodes, context), seconds)

  def add_draft(
    self, rows: int, context: int | float, seconds: int | float
  ) -> None:
    """Takes a warm-up measurement of proposing; 0 s where it is free."""
    _check(rows, 1, context, seconds, least_s=0.0)
    self._draft.add((rows, 0, context), seconds)

  def update(
    self, rows: int, nodes: int, context: int | float, seconds: int | float
  ) -> bool:
    """Takes the verification time of a live round; False if an outlier.

    `nodes` is the compiled budget that ran, not the nodes in use.
    """
    _check(rows, nodes, context, seconds, least_s=surface._SMALLEST)
    return self._verify.update((rows, nodes, context), seconds)

  def update_draft(
    self, rows: int, context: int | float, seconds: int | float
  ) -> bool:
    """Takes the proposing time of a live round; False if an outlier."""
    _check(rows, 1, context, seconds, least_s=0.0)
    return self._draft.update((rows, 0, context), seconds)

  def seconds(self, rows: int, nodes: int, context: int | float) -> float:
    """Expected seconds of verifying.

    Raises:
      UserError: nothing was measured.
    """
    return float(self._verify.at([(rows, nodes, context)], 'verifying')[0])

  def costs(
    self, rows: int, context: int | float, budgets: Sequence[int]
  ) -> costs_lib.Costs:
    """The staircase of `budgets` at so many rows and their mean context.

    Raises:
      UserError: nothing was measured; without costs every draft looks free.
    """
    return costs_lib.make(list(budgets), *self.times(rows, context, budgets))

  def times(
    self, rows: int, context: int | float, budgets: Sequence[int]
  ) -> tuple[list[float], float]:
    """Seconds of verifying each budget, and of proposing, on the host.

    Raises:
      UserError: nothing was measured.
    """
    queries = [(rows, nodes, context) for nodes in budgets]
    verify_s = self._verify.at(queries, 'verifying')
    draft_s = self._draft.at([(rows, 0, context)], 'proposing')
    return verify_s.tolist(), float(draft_s[0])

  def entries(self) -> list[tuple[int, int, float, float]]:
    """Rows, nodes, context and median seconds of verification, sorted."""
    return self._verify.entries()

  def save(self, path: str | os.PathLike) -> None:
    """Writes JSON; a reader sees the whole table or the one before.

    Raises:
      ValueError: there is no key yet, under which it could be found again.
    """
    if self.key is None:
      raise ValueError(f'a cost table without a key cannot be saved to {path}')
    path = pathlib.Path(path)
    document = {
      'key': dataclasses.asdict(self.key),
      'verify': self._verify.entries(),
      'draft': self._draft.entries(),
    }
    part = path.with_name(f'{path.name}.{os.getpid()}.part')
    part.write_text(json.dumps(document, indent=1), encoding='utf-8')
    os.replace(part, path)


def load(path: str | os.PathLike, key: Key) -> CostTable:
  """Reads a saved table.

  Raises:
    UserError: no table, a damaged one, or one of another key.
  """
  path = pathlib.Path(path)
  try:
    document = json.loads(path.read_text(encoding='utf-8'))
    saved = Key(**document['key'])
    verify, draft = document['verify'], document['draft']
    table = CostTable(key)
    for rows, nodes, context, seconds in verify:
      table.add(rows, nodes, context, seconds)
    for rows, _, context, seconds in draft:
      table.add_draft(rows, context, seconds)
  except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
    raise errors.UserError(
      f'cost table {path} cannot be read ({error}); delete it, and it is'
      ' measured again'
    ) from error
  if saved != key:
    wrong = ', '.join(
      f'{field.name} {getattr(saved, field.name)!r} and not'
      f' {getattr(key, field.name)!r}'
      for field in dataclasses.fields(Key)
      if getattr(saved, field.name) != getattr(key, field.name)
    )
    raise errors.UserError(
      f'cost table {path} was measured with {wrong}; measure again and save it'
      ' under another name'
    )
  return table


class _Times:
  """Recent times by entry, and the surface through their medians."""

  def __init__(self):
    self._recent = {}
    self._surface = None
    self._since_fit = 0

  def add(self, point, seconds):
    cell = self._recent.setdefault(_cell(point), _Recent())
    cell.take(point[2], seconds)
    self._surface = None

  def update(self, point, seconds):
    if not self._recent:
      self.add(point, seconds)
      return True
    cell = self._recent.setdefault(_cell(point), _Recent())
    expected = float(self.at([point], 'live rounds')[0])
    if seconds > OUTLIER * expected:
      cell.num_outliers += 1
      if cell.num_outliers < NUM_BELIEVED:
        return False
      # What was expected is far off: until the next fit all are outliers.
      self._surface = None
    cell.num_outliers = 0
    cell.take(point[2], seconds)
    self._since_fit += 1
    if self._since_fit >= REFIT_EVERY:
      self._surface = None
    return True

  def entries(self):
    return sorted(
      (rows, nodes, *cell.median())
      for (rows, nodes, _), cell in self._recent.items()
      if cell.samples
    )

  def at(self, queries, what):
    if self._surface is None:
      entries = np.array(self.entries(), float).reshape(-1, 4)
      if not len(entries):
        raise errors.UserError(
          f'the cost table holds no time of {what}: measure at least one, or'
          ' plan with `static`, which needs none'
        )
      self._surface = surface.fit(entries[:, :3], entries[:, 3])
      self._since_fit = 0
    return self._surface.at(np.array(queries, float))


class _Recent:
  """The last times of an entry, with the context that each had."""

  def __init__(self):
    self.samples = collections.deque(maxlen=NUM_RECENT)
    self.num_outliers = 0

  def take(self, context, seconds):
    self.samples.append((float(context), float(seconds)))

  def median(self):
    context, seconds = np.median(np.array(self.samples), axis=0)
    return float(context), float(seconds)


def _cell(point):
  """Contexts within a factor of two share an entry."""
  rows, nodes, context = point
  return rows, nodes, round(math.log2(1 + context))


def _check(rows, nodes, context, seconds, *, least_s):
  is_time = math.isfinite(seconds) and seconds >= least_s
  if rows < 1 or nodes < 1 or not 0 <= context < math.inf or not is_time:
    raise errors.UserError(
      f'time of rows={rows} nodes={nodes} context={context}: {seconds} s; give'
      ' at least one row and node, a context from 0 and a time that is one'
    )
