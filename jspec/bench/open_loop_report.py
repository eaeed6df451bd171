# SPDX-License-Identifier: MIT
"""What `open_loop` found, as a table and as a drawing."""

from typing import Any

from jspec.bench import open_loop, shares_plot, throughput_report
from jspec.bench import plot as plot_lib


def table(result: dict[str, Any]) -> str:
  """Markdown: one line for each name, and what was made of the trace."""
  heads = ['policy', 'tokens/s', 'busy tokens/s', 'over plain', 'goodput']
  heads += [f'first token p{p}, s' for p in open_loop.PERCENTILES]
  heads += [f'per token p{p}, ms' for p in open_loop.PERCENTILES]
  heads += ['rows']
  lines = ['| ' + ' | '.join(heads) + ' |', '|' + '---|' * len(heads)]
  for name, line in result['results'].items():
    over = (line['over_plain'] or {}).get('tokens_per_busy_second')
    cells = [
      name,
      f'{line["tokens_per_second"]:.1f}',
      f'{line["tokens_per_busy_second"]:.1f}',
      throughput_report.number(over, 2),
      f'{line["goodput"]:.1f}',
      *_cells(line['first_token_s'], 1, 2),
      *_cells(line['per_token_s'], 1000, 1),
      throughput_report.number(line.get('mean_rows'), 1),
    ]
    lines.append('| ' + ' | '.join(cells) + ' |')
  trace, limits = result['trace'], result['limits']
  lines += [
    '',
    f'{trace["num_requests"]} requests in {trace["seconds"]:.0f} s'
    f' ({trace["speed_up"]:.3g} times as fast as recorded), lengths times'
    f' {trace["length_scale"]:.3g}: {trace["mean_prompt_tokens"]:.0f} tokens of'
    f' prompt and {trace["mean_answer_tokens"]:.0f} of answer;'
    f' {trace["num_cut"]} were cut. goodput: first token within'
    f' {_limit(limits["first_token_s"])}, then {_limit(limits["per_token_s"])}'
    ' a token',
  ]
  return '\n'.join(lines)


def _limit(seconds):
  return 'any time' if seconds is None else f'{seconds:.3g} s'


def _cells(found, factor, digits):
  if found is None:
    return [''] * len(open_loop.PERCENTILES)
  return [f'{factor * value:.{digits}f}' for value in found.values()]


def plot(result: dict[str, Any], title: str) -> str:
  """SVG: latencies by percentile, and the depths chosen."""
  results = result['results']
  drawn = []
  for key, factor, label in (
    ('first_token_s', 1, 's to the first token'),
    ('per_token_s', 1000, 'ms per token'),
  ):
    lines = [
      _line(name, line[key], factor)
      for name, line in results.items()
      # An answer that comes at once takes no time per token.
      if line[key] is not None and line[key]['p50'] > 0
    ]
    if lines:
      drawn.append(
        plot_lib.svg(lines, title=title, x_label='percentile', y_label=label)
      )
  rows = [
    shares_plot.Row(
      name=name, shares=throughput_report.shares(line['rounds_by_depth'])
    )
    for name, line in results.items()
    if 'rounds_by_depth' in line
  ]
  if rows:
    drawn.append(throughput_report.depths(rows))
  return plot_lib.stacked(*drawn)


def _line(name, found, factor):
  return plot_lib.Line(
    name, tuple((p, factor * found[f'p{p}']) for p in open_loop.PERCENTILES)
  )
