# SPDX-License-Identifier: MIT
"""What `throughput` found, as a table and as a drawing."""

from typing import Any

from jspec.bench import plot as plot_lib
from jspec.bench import rival, shares_plot

_COLUMNS = {
  'tokens/s': ('tokens_per_second', 1),
  'over plain': ('over_plain', 2),
  'over full': ('over_full', 2),
  'tokens/round': ('tokens_per_round', 2),
  'at depth 0': ('share_at_depth_0', 2),
  'of oracle': ('share_of_oracle', 3),
  'of best fixed': ('of_best_fixed', 3),
  'over even nodes': ('kept_at_equal_nodes', 2),
  'host': ('host_share', 4),
}


def table(result: dict[str, Any]) -> str:
  """Markdown: one line for each concurrency and name."""
  heads = ['requests', 'policy', *_COLUMNS]
  lines = ['| ' + ' | '.join(heads) + ' |', '|' + '---|' * len(heads)]
  for at in result['concurrencies']:
    for name, line in at['results'].items():
      cells = [str(at['concurrency']), name]
      cells += [number(line[key], n) for key, n in _COLUMNS.values()]
      lines.append('| ' + ' | '.join(cells) + ' |')
  lines += ['', *(_note(at) for at in result['concurrencies'])]
  other = result.get('transformers')
  if other is not None:
    name = f'transformers {other["version"]} ({other["num_threads"]} threads)'
    lines += [rival.line(found, name) for found in other['compared']]
  return '\n'.join(lines)


def _note(at):
  """What a concurrency says of no name in particular."""
  said = f'{at["concurrency"]} requests: '
  if at['best_fixed'] is not None:
    depth = at['best_fixed']['depth']
    said += f'best fixed depth {depth} in {at["num_replayed"]} rounds; '
  return (
    f'{said}host {at["host_share"]:.2%} of all time, device idle at most'
    f' {at["idle_share_at_most"]:.2%}'
  )


def plot(result: dict[str, Any], title: str) -> str:
  """SVG: speed over plain decoding by concurrency, and the depths chosen."""
  at_all = result['concurrencies']
  lines = [
    plot_lib.Line(
      name=name,
      points=tuple(
        sorted(
          (at['concurrency'], at['results'][name]['over_plain'])
          for at in at_all
        )
      ),
    )
    for name in result['names']
  ]
  speed = plot_lib.svg(
    lines, title=title, x_label='requests', y_label='over plain'
  )
  rows = [
    shares_plot.Row(
      name=f'{at["concurrency"]} {name}', shares=shares(line['rounds_by_depth'])
    )
    for at in at_all
    for name, line in at['results'].items()
  ]
  return plot_lib.stacked(speed, depths(rows))


def depths(rows: list[shares_plot.Row]) -> str:
  """SVG: how many drafts rounds verified, in per cent."""
  return shares_plot.svg(
    rows, title='rounds of rows, %', label='drafts verified'
  )


def shares(counts: list[int]) -> tuple[float, ...]:
  """Counts as shares of their sum."""
  return tuple(count / sum(counts) for count in counts)


def number(value: float | None, digits: int) -> str:
  """A cell; empty where there is no figure."""
  return '' if value is None else f'{value:.{digits}f}'
