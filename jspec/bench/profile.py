# SPDX-License-Identifier: MIT
r"""What rounds of an engine cost, and what drafts must bring to pay.

  rows B   nodes N   verify C(N)   a node C(N) / N   draft d   must accept

A round of B rows that verifies N nodes commits B tokens (a bonus each) and the
accepted drafts. It is as fast a token as plain decoding, of B nodes and no
draft, if each of its N - B drafts is accepted with a chance of

  must accept  =  B ((d + C(N)) / C(B) - 1) / (N - B)

on average. Above 1 no drafter pays there; D-cut chooses by the same costs, so
where all of a row's lines are above what is accepted, it will not draft.

Few points are measured and the rest is interpolated (`serve.warm_up`,
`depth.cost_table`); a ~ marks those.
"""

from typing import Any

import numpy as np

from jspec.bench import plot as plot_lib
from jspec.decode import scoring
from jspec.depth import cost_table
from jspec.serve import settings


def run(sizes: settings.Sizes, costs: cost_table.CostTable) -> dict[str, Any]:
  """What an engine of such sizes knows of its rounds.

  Returns:
    JSON values; `table` shows them.
  """
  entries = costs.entries()
  context = float(np.median([entry[2] for entry in entries]))
  measured = {(rows, nodes) for rows, nodes, *_ in entries}
  found = []
  for rows in sizes.row_buckets:
    budgets = scoring.budgets(
      rows, sizes.scheduler.max_drafts + 1, sizes.num_budgets
    )
    at = costs.costs(rows, context, budgets)
    draft_ms = 1000 * float(at.draft_s)
    verify_ms = (1000 * np.asarray(at.verify_s, float)).tolist()
    lines = [
      {
        'nodes': nodes,
        'verify_ms': ms,
        'ms_per_node': ms / nodes,
        'must_accept': must_accept(
          rows, nodes, draft_ms + ms, plain=verify_ms[0]
        ),
        'is_measured': (rows, nodes) in measured,
      }
      for nodes, ms in zip(budgets, verify_ms, strict=True)
    ]
    found.append({'rows': rows, 'draft_ms': draft_ms, 'budgets': lines})
  return {
    'benchmark': 'profile',
    'device': costs.key.device_kind,
    'context': context,
    'rows': found,
  }


def must_accept(
  rows: int, nodes: int, round_: float, *, plain: float
) -> float | None:
  """Accepted drafts for each verified one at which a round just pays.

  Args:
    rows: that decode.
    nodes: that are verified, anchors included.
    round_: time of the round, proposing included.
    plain: time of a round of one node a row.

  Returns:
    None where nothing is drafted.
  """
  if nodes == rows:
    return None
  return rows * (round_ / plain - 1) / (nodes - rows)


def table(result: dict[str, Any]) -> str:
  """Markdown: one line for each number of rows and nodes."""
  lines = [
    '| rows | nodes | verify ms | ms a node | draft ms | must accept |',
    '|' + '---|' * 6,
  ]
  for at in result['rows']:
    for line in at['budgets']:
      about = '' if line['is_measured'] else '~'
      needed = line['must_accept']
      cells = [
        str(at['rows']),
        str(line['nodes']),
        f'{about}{line["verify_ms"]:.2f}',
        f'{line["ms_per_node"]:.3f}',
        f'{at["draft_ms"]:.2f}',
        '' if needed is None else f'{needed:.2f}',
      ]
      lines.append('| ' + ' | '.join(cells) + ' |')
  lines += [
    '',
    f'{result["device"]}, {result["context"]:.0f} cached tokens a row; ~ is'
    ' interpolated. must accept: accepted drafts for each verified one, below'
    ' which plain decoding is faster.',
  ]
  return '\n'.join(lines)


def plot(result: dict[str, Any], title: str) -> str:
  """SVG: milliseconds of verifying by nodes, a line for each number of rows."""
  lines = [
    plot_lib.Line(
      name=f'{at["rows"]} row' + 's' * (at['rows'] > 1),
      points=tuple((b['nodes'], b['verify_ms']) for b in at['budgets']),
    )
    for at in result['rows']
  ]
  return plot_lib.svg(lines, title=title, x_label='nodes', y_label='verify ms')
