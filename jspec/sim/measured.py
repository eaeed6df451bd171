# SPDX-License-Identifier: MIT
"""A machine from a cost table that was measured (`depth.cost_table` as JSON).

The table holds (rows, nodes, context, seconds) of verifying and of proposing.
Every number of rows in it becomes a bucket, and its totals of nodes the points
of the line. Plain decoding is verifying one node a row without proposing; where
that total is missing, no speed-up over it is given.
"""

import json
import pathlib

import numpy as np

from jspec import errors
from jspec.depth import cost_table
from jspec.sim import costs, machines


def read(path: pathlib.Path, context: int | None = None) -> costs.Machine:
  """The machine of a file.

  Args:
    path: what `CostTable.save` wrote.
    context: cached tokens a row; the median of those measured if None.

  Raises:
    UserError: no such table, a context outside of what was measured, or rows
      with fewer than two totals.
  """
  table = cost_table.load(path, _key(path))
  entries = table.entries()
  contexts = [entry[2] for entry in entries]
  if not entries:
    raise errors.UserError(f'cost table {path} is empty; measure first')
  if context is None:
    context = int(np.median(contexts))
  elif not min(contexts) <= context <= max(contexts):
    raise errors.UserError(
      f'context {context}: {path} was measured with {min(contexts):.0f} to'
      f' {max(contexts):.0f} cached tokens a row; stay between or measure again'
    )
  totals = {}
  for rows, nodes, *_ in entries:
    totals.setdefault(rows, set()).add(nodes)
  block = min(max(nodes) // rows for rows, nodes in totals.items())
  buckets = tuple(
    _bucket(path, table, rows, totals[rows], block, context)
    for rows in sorted(totals)
  )
  return costs.Machine(
    name=f'{path.name} ({table.key.target} on {table.key.device_kind})',
    block=block,
    buckets=buckets,
    prefill_s=machines.prefill(buckets[-1].nodes, buckets[-1].verify_s),
  )


def _key(path):
  """The key a table was saved with: any is welcome here."""
  try:
    document = json.loads(path.read_text(encoding='utf-8'))
    return cost_table.Key(**document['key'])
  except (OSError, ValueError, TypeError, KeyError) as error:
    raise errors.UserError(
      f'no cost table in {path} ({error}); give a published name'
      f' ({", ".join(machines.PUBLISHED)}) or what `CostTable.save` wrote'
    ) from error


def _bucket(path, table, rows, totals, block, context):
  most = block * rows
  # The whole draft of this many rows, if another number of rows limits it.
  nodes = sorted({total for total in totals if rows <= total < most} | {most})
  if len(nodes) < 2:
    raise errors.UserError(
      f'cost table {path}: {rows} rows were measured with {sorted(totals)}'
      f' nodes only; measure at least {rows} and {most}'
    )
  priced = table.costs(rows, context, nodes)
  verify_s = tuple(float(seconds) for seconds in priced.verify_s)
  return costs.Bucket(
    rows=rows,
    nodes=tuple(nodes),
    verify_s=verify_s,
    draft_s=float(priced.draft_s),
    plain_s=verify_s[0] if nodes[0] == rows else None,
  )
