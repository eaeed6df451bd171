# SPDX-License-Identifier: MIT
"""What rounds cost on a machine, between measured points and never beyond.

A machine is a few buckets of rows; fewer rows run in the smallest bucket that
holds them, as in the engine; `with_rows` puts a bucket between two. In a
bucket, verification is a line through the measured totals of nodes:

  seconds           _o       o  measured
               _o--'
         __o--'              a budget between two points is on the line;
        o                    below the first or above the last it is refused
        4R   8R  12R  16R    nodes of R rows

The policies see a staircase of budgets on that line (`depth.costs.Costs`), and
a round is charged the step that its nodes need. Context is in no table here:
the numbers hold for the context they were measured at.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from jspec import errors
from jspec.depth import costs as costs_lib

NUM_BUDGETS = 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bucket:
  """Times of at most `rows` rows.

  Attributes:
    rows: rows of the compiled programs.
    nodes: measured totals, anchors included, ascending.
    verify_s: seconds to verify them, never falling.
    draft_s: seconds to propose a whole block for every row.
    plain_s: seconds of a round without proposing, one token a row; None where
      nobody measured it.
    other_s: seconds that every round takes besides, whatever its form; no
      policy knows of them.
  """

  rows: int
  nodes: tuple[int, ...]
  verify_s: tuple[float, ...]
  draft_s: float
  plain_s: float | None = None
  other_s: float = 0.0

  def at(self, nodes: Sequence[int]) -> list[float]:
    """Seconds to verify totals of nodes, on the line between measurements.

    Raises:
      UserError: a total that nothing was measured for.
    """
    least, most = self.nodes[0], self.nodes[-1]
    outside = [total for total in nodes if not least <= total <= most]
    if outside:
      raise errors.UserError(
        f'no time of {outside[0]} nodes in {self.rows} rows: measured are'
        f' {least} to {most} nodes, and beyond them nothing is known; measure'
        ' that total or stay between'
      )
    return np.interp(nodes, self.nodes, self.verify_s).tolist()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Machine:
  """A device, a target and a drafter.

  Attributes:
    name: of all three.
    block: nodes of a row with the whole draft, anchor included.
    buckets: by rising rows; the last total of each is `block` x rows.
    prefill_s: seconds a prompt token takes.
  """

  name: str
  block: int
  buckets: tuple[Bucket, ...]
  prefill_s: float

  def __post_init__(self):
    rows = [bucket.rows for bucket in self.buckets]
    if not rows or np.any(np.diff(rows) <= 0):
      raise errors.UserError(
        f'costs {self.name}: rows {rows} do not ascend; give each bucket once'
      )
    for bucket in self.buckets:
      # Says what is wrong with nodes and times.
      costs_lib.make(bucket.nodes, bucket.verify_s, bucket.draft_s)
      if bucket.nodes[-1] != self.block * bucket.rows or len(bucket.nodes) < 2:
        raise errors.UserError(
          f'costs {self.name}: {bucket.rows} rows were measured with'
          f' {list(bucket.nodes)} nodes; measure two totals or more, the last'
          f' the whole draft of all rows: {self.block * bucket.rows}'
        )

  @property
  def num_drafts(self) -> int:
    return self.block - 1

  @property
  def max_rows(self) -> int:
    return self.buckets[-1].rows

  @property
  def has_plain(self) -> bool:
    """Whether decoding without drafts was measured at all rows."""
    return all(bucket.plain_s is not None for bucket in self.buckets)

  def bucket(self, rows: int) -> Bucket:
    """The smallest bucket that holds so many rows.

    Raises:
      UserError: more rows than the largest.
    """
    for bucket in self.buckets:
      if rows <= bucket.rows:
        return bucket
    raise errors.UserError(
      f'{rows} rows on {self.name}: it was measured with at most'
      f' {self.max_rows}; lower the concurrency or measure more rows'
    )

  def with_rows(self, rows: int) -> 'Machine':
    """The machine with a bucket of exactly so many rows, if they lie between.

    Times are on the line between the two buckets around it, at equal nodes a
    row. Rows below the first bucket run in that one.

    Raises:
      UserError: more rows than the largest, or neighbours that were measured at
        other nodes a row.
    """
    above = self.bucket(rows)
    place = self.buckets.index(above)
    if rows == above.rows or not place:
      return self
    below = self.buckets[place - 1]
    share = (rows - below.rows) / (above.rows - below.rows)
    each = [np.array(bucket.nodes) / bucket.rows for bucket in (below, above)]
    nodes = each[1] * rows
    if len(each[0]) != len(each[1]) or np.any(each[0] != each[1]):
      raise errors.UserError(
        f'costs {self.name}: {below.rows} and {above.rows} rows were measured'
        f' at other nodes a row, so there is no line to {rows} rows between'
        ' them; give a concurrency that was measured'
      )

    def between(name):
      low, high = (np.asarray(getattr(b, name)) for b in (below, above))
      return ((1 - share) * low + share * high).tolist()

    has_plain = None not in (below.plain_s, above.plain_s)
    middle = Bucket(
      rows=rows,
      nodes=tuple(int(total) for total in np.ceil(nodes - 1e-9)),
      verify_s=tuple(between('verify_s')),
      draft_s=between('draft_s'),
      plain_s=between('plain_s') if has_plain else None,
      other_s=between('other_s'),
    )
    buckets = (*self.buckets[:place], middle, *self.buckets[place:])
    return dataclasses.replace(self, buckets=buckets)

  def staircase(
    self, bucket: Bucket, ratios: tuple[float, ...] = ()
  ) -> costs_lib.Costs:
    """What a policy plans with.

    Args:
      bucket: of this machine.
      ratios: a budget for each of these shares of the whole draft of all rows;
        without them `NUM_BUDGETS` evenly from the least to the most nodes that
        were measured (fewer where there are not so many totals; the same number
        in every bucket, so that one program plans for all).

    Raises:
      UserError: a share below what was measured.
    """
    most = bucket.nodes[-1]
    if ratios:
      nodes = [int(np.ceil(ratio * most - 1e-9)) for ratio in ratios]
    else:
      spans = [each.nodes[-1] - each.nodes[0] for each in self.buckets]
      number = min(NUM_BUDGETS, min(spans) + 1)
      nodes = np.linspace(bucket.nodes[0], most, number).round().astype(int)
      nodes = nodes.tolist()
    return costs_lib.make(nodes, bucket.at(nodes), bucket.draft_s)
