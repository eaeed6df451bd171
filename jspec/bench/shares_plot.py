# SPDX-License-Identifier: MIT
"""Shares of a whole, a row for each name, as an SVG grid: the darker, the more.

              0    1    2   drafts
   1 dcut    12   30   58
  16 dcut    97    3    .

Numbers are per cent; a share that is not 0 but rounds to it shows as 0.
"""

import dataclasses
import html
from collections.abc import Sequence

from jspec import errors

_WIDTH, _LEFT, _TOP, _STEP, _BOTTOM = 640, 190, 56, 20, 12
_COLOUR = '#0072b2'


@dataclasses.dataclass(frozen=True)
class Row:
  """A row of the grid.

  Attributes:
    name: at its left.
    shares: of 0, 1, ..., together 1.
  """

  name: str
  shares: tuple[float, ...]


def svg(rows: Sequence[Row], *, title: str, label: str) -> str:
  """Draws the rows.

  Raises:
    UserError: there is no row, or what is no share.
  """
  if not rows or not all(
    0 <= share <= 1.000001 for row in rows for share in row.shares
  ):
    raise errors.UserError(
      f'plot {title!r}: give at least one row, and shares from 0 to 1'
    )
  num_columns = max(len(row.shares) for row in rows)
  width = min(48.0, (_WIDTH - _LEFT - 16) / num_columns)
  height = _TOP + _STEP * len(rows) + _BOTTOM
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}"'
    f' height="{height}" viewBox="0 0 {_WIDTH} {height}"'
    ' font-family="sans-serif" font-size="12">',
    f'<title>{html.escape(title)}</title>',
    f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    _text(title, _WIDTH / 2, 22, 'middle', size=14),
    _text(label, _LEFT - 10, _TOP - 8, 'end'),
  ]
  for column in range(num_columns):
    middle = _LEFT + (column + 0.5) * width
    parts.append(_text(str(column), middle, _TOP - 8, 'middle'))
  for i, row in enumerate(rows):
    top = _TOP + i * _STEP
    parts.append(_text(row.name, _LEFT - 10, top + 14, 'end'))
    for column, share in enumerate(row.shares):
      left = _LEFT + column * width
      parts.append(
        f'<rect x="{left:.1f}" y="{top}" width="{width - 1:.1f}"'
        f' height="{_STEP - 1}" fill="{_COLOUR}" fill-opacity="{share:.3f}"/>'
      )
      if share:
        colour = 'white' if share > 0.5 else 'black'
        parts.append(
          _text(
            f'{100 * share:.0f}', left + width / 2, top + 14, 'middle', colour
          )
        )
  return '\n'.join([*parts, '</svg>', ''])


def _text(text, x, y, anchor, colour='black', size=12):
  return (
    f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"'
    f' font-size="{size}">{html.escape(text)}</text>'
  )
