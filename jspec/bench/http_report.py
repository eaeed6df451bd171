# SPDX-License-Identifier: MIT
"""What `http` found, as a table."""

from typing import Any

_ROW = '| {} | {} | {:.1f} | {:.1%} | {:.1%} |'


def table(result: dict[str, Any]) -> str:
  """Markdown: a line for each concurrency and way, then what it comes to."""
  lines = [
    '| requests | engine | tokens/s | event loop | clients |',
    '|---|---|---|---|---|',
  ]
  for at in result['concurrencies']:
    for name, of in at['results'].items():
      lines.append(
        _ROW.format(
          at['concurrency'],
          name,
          of['tokens_per_second'],
          of['loop_share'],
          of['client_share'],
        )
      )
  lines.append('')
  for at in result['concurrencies']:
    lines += _notes(at, result)
  return '\n'.join(lines)


def _notes(at, result):
  least, most = at['over_direct_range']
  said = (
    f'{at["concurrency"]} requests: over HTTP {at["over_direct"]:.3f} of the'
    f' tokens/s, median of {result["num_turns"]} turns from {least:.3f} to'
    f' {most:.3f}'
  )
  if result['shares_cores']:
    said += (
      f'; {at["without_clients"]:.3f} without the CPU of the clients, which'
      f' work on the same {result["num_cores"]} cores'
    )
  yield said
  first = at.get('first_token')
  if first is not None:
    yield (
      f'first token: {first["http_s"] * 1e3:.1f} ms over HTTP, '
      f'{first["over_direct"]:.2f} of the engine called directly and '
      f'{first["over_prefill"]:.2f} of a bare prefill'
      f' ({first["prefill_s"] * 1e3:.1f} ms)'
    )
