# SPDX-License-Identifier: MIT
"""Tables of plain text: the first column to the left, numbers to the right."""

from collections.abc import Sequence
from typing import Any


def aligned(header: Sequence[Any], rows: Sequence[Sequence[Any]]) -> str:
  """The rows under their header, two spaces between columns."""
  cells = [[str(cell) for cell in row] for row in (header, *rows)]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  lines = []
  for row in cells:
    first, *others = zip(row, widths, strict=True)
    padded = [first[0].ljust(first[1])]
    padded += [cell.rjust(width) for cell, width in others]
    lines.append('  '.join(padded).rstrip())
  return '\n'.join(lines)


def number(value: float | None, digits: int = 2) -> str:
  """A number; n/a for what is not known."""
  return 'n/a' if value is None else f'{value:.{digits}f}'
