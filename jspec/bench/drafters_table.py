# SPDX-License-Identifier: MIT
"""What each of several drafters did on one engine, as a table."""

from typing import Any


def table(of: dict[str, Any]) -> str:
  """Markdown: one line for each drafter, of `Metrics.drafters`."""
  lines = [
    '| drafter | tokens | tokens/round | verified by depth | accepted |',
    '|' + '---|' * 5,
  ]
  for name, counts in of.items():
    cells = [
      name,
      str(counts['num_tokens']),
      f'{counts["num_tokens"] / max(counts["num_rounds"], 1):.2f}',
      ' '.join(map(str, counts['num_drafted'])),
      ' '.join(map(str, counts['num_accepted'])),
    ]
    lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)
