# SPDX-License-Identifier: MIT
"""A plot of a few lines as SVG text: both axes logarithmic, nothing to install.

   ms |        o--o 4 rows
  100 |     o-'
   10 |  o-'  __o-- 1 row
      +---------------
         1     10  nodes

What grows by a factor looks the same everywhere, so lines of one row and of
sixty-four are read on one page.
"""

import dataclasses
import html
import math
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from jspec import errors

_WIDTH, _HEIGHT = 640, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 132, 40, 52
# Told apart in grey and by the colour-blind; dashes tell the rest apart.
_COLOURS = ('#0072b2', '#d55e00', '#009e73', '#cc79a7', '#e69f00', '#000000')
_DASHES = ('', '6 3', '2 3')
_STEPS = (1, 2, 5)


@dataclasses.dataclass(frozen=True)
class Line:
  """A line of a plot.

  Attributes:
    name: for the legend.
    points: x and y, both above 0, by ascending x.
  """

  name: str
  points: tuple[tuple[int | float, int | float], ...]


def svg(
  lines: Sequence[Line], *, title: str, x_label: str, y_label: str
) -> str:
  """Draws the lines.

  Raises:
    UserError: there is no point, or one that a logarithm cannot take.
  """
  points = [point for line in lines for point in line.points]
  if not points or not all(
    0 < value < math.inf for point in points for value in point
  ):
    raise errors.UserError(
      f'plot {title!r}: give at least one point, and only finite numbers above'
      ' 0'
    )
  x = _Axis.over([x for x, _ in points], _LEFT, _WIDTH - _RIGHT)
  y = _Axis.over([y for _, y in points], _HEIGHT - _BOTTOM, _TOP)
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}"'
    f' height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    ' font-family="sans-serif" font-size="12">',
    f'<title>{html.escape(title)}</title>',
    f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    _text(title, (x.begin + x.end) / 2, _TOP - 16, 'middle', size=14),
    _text(x_label, (x.begin + x.end) / 2, _HEIGHT - 12, 'middle'),
    _text(y_label, _LEFT - 48, _TOP - 16, 'start'),
  ]
  for tick in x.ticks():
    at = x.place(tick)
    parts += [
      _rule(at, y.begin, at, y.end),
      _text(f'{tick:g}', at, y.begin + 16, 'middle'),
    ]
  for tick in y.ticks():
    at = y.place(tick)
    parts += [
      _rule(x.begin, at, x.end, at),
      _text(f'{tick:g}', x.begin - 6, at + 4, 'end'),
    ]
  for i, line in enumerate(lines):
    parts += _line(i, line, x, y)
  return '\n'.join([*parts, '</svg>', ''])


def stacked(*drawings: str) -> str:
  """Several SVG texts as one, below each other."""
  found = [ElementTree.fromstring(text) for text in drawings]
  tops = [0]
  for drawing in found:
    tops.append(tops[-1] + int(drawing.get('height')))
  width = max(int(drawing.get('width')) for drawing in found)
  parts = [
    f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}"'
    f' height="{tops[-1]}" viewBox="0 0 {width} {tops[-1]}">'
  ]
  for text, top in zip(drawings, tops, strict=False):
    parts.append(text.replace('<svg ', f'<svg y="{top}" ', 1).rstrip())
  return '\n'.join([*parts, '</svg>', ''])


@dataclasses.dataclass(frozen=True)
class _Axis:
  """Places of numbers between `low` and `high`."""

  low: float
  high: float
  begin: float
  end: float

  @classmethod
  def over(cls, values, begin, end):
    """From the last tick below all values to the first above."""
    low = max(tick for tick in _around(min(values)) if tick <= min(values))
    high = min(tick for tick in _around(max(values)) if tick >= max(values))
    high = high if high > low else 2 * low
    return cls(low, high, float(begin), float(end))

  def place(self, value):
    share = math.log(value / self.low) / math.log(self.high / self.low)
    return self.begin + share * (self.end - self.begin)

  def ticks(self):
    first = math.floor(math.log10(self.low))
    last = math.ceil(math.log10(self.high))
    every = [
      step * 10.0**power
      for power in range(first, last + 1)
      for step in (_STEPS if last - first <= 4 else (1,))
    ]
    # A little more than the ends, which are ticks up to rounding.
    return [t for t in every if self.low * 0.999 <= t <= self.high * 1.001]


def _around(value):
  power = math.floor(math.log10(value))
  return [
    step * 10.0**p for p in (power - 1, power, power + 1) for step in _STEPS
  ]


def _line(i, line, x, y):
  """A line, a mark for each point, and its name at the right."""
  colour = _COLOURS[i % len(_COLOURS)]
  dash = _DASHES[i // len(_COLOURS) % len(_DASHES)]
  places = [(x.place(a), y.place(b)) for a, b in line.points]
  drawn = ' '.join(f'{a:.1f},{b:.1f}' for a, b in places)
  style = f'fill="none" stroke="{colour}" stroke-width="2"'
  if dash:
    style += f' stroke-dasharray="{dash}"'
  left, height = _WIDTH - _RIGHT + 12, _TOP + 8 + 18 * i
  return [
    f'<polyline points="{drawn}" {style}/>',
    *(
      f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>'
      for a, b in places
    ),
    f'<polyline points="{left},{height} {left + 20},{height}" {style}/>',
    _text(line.name, left + 26, height + 4, 'start'),
  ]


def _rule(x1, y1, x2, y2):
  return (
    f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    ' stroke="#ddd"/>'
  )


def _text(text, x, y, anchor, size=12):
  return (
    f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    f' font-size="{size}">{html.escape(text)}</text>'
  )
