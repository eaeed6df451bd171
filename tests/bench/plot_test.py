# SPDX-License-Identifier: MIT
"""A plot shows its points where they belong, and is XML."""

import xml.etree.ElementTree as ElementTree

import pytest

from jspec import errors
from jspec.bench import plot

NAMESPACE = '{http://www.w3.org/2000/svg}'


def draw(*lines, title='costs'):
  text = plot.svg(lines, title=title, x_label='nodes', y_label='ms')
  return ElementTree.fromstring(text)


def places(root):
  """Points of the lines, without those of the legend."""
  drawn = root.findall(f'{NAMESPACE}polyline')[::2]
  return [
    [tuple(map(float, pair.split(','))) for pair in line.get('points').split()]
    for line in drawn
  ]


def texts(root):
  return [text.text for text in root.findall(f'{NAMESPACE}text')]


def test_equal_factors_are_equal_distances():
  (points,) = places(draw(plot.Line('1 row', ((1, 2), (10, 20), (100, 2000)))))
  (x0, y0), (x1, y1), (x2, y2) = points
  assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2) and x1 > x0
  # Up is more, and 100 times as much is twice as far as 10 times.
  assert y1 - y2 == pytest.approx(2 * (y0 - y1), abs=0.3) and y0 > y1


def test_every_line_has_its_name_and_all_lie_inside():
  lines = [
    plot.Line(f'{n} rows', tuple((k, n * k * 0.7) for k in (n, 3 * n, 9 * n)))
    for n in (1, 4, 16, 64, 256, 512, 1024)
  ]
  root = draw(*lines)
  width, height = float(root.get('width')), float(root.get('height'))
  found = places(root)
  assert len(found) == len(lines)
  for x, y in (point for line in found for point in line):
    assert 0 < x < width and 0 < y < height
  for line in lines:
    assert line.name in texts(root)
  styles = {
    (line.get('stroke'), line.get('stroke-dasharray'))
    for line in root.findall(f'{NAMESPACE}polyline')
  }
  assert len(styles) == len(lines)  # No two look the same.


def test_axes_have_labels_and_ticks_around_all_values():
  found = texts(draw(plot.Line('1 row', ((3, 25), (40, 130)))))
  assert {'nodes', 'ms', 'costs'} <= set(found)
  assert {'2', '5', '10', '20', '50'} <= set(found)  # nodes
  assert {'100', '200'} <= set(found)  # ms


def test_one_point_is_a_plot():
  (points,) = places(draw(plot.Line('1 row', ((4, 4),))))
  assert len(points) == 1


def test_names_are_escaped():
  root = draw(plot.Line('<&>', ((1, 1),)), title='a<b>&"c"')
  assert {'<&>', 'a<b>&"c"'} <= set(texts(root))


@pytest.mark.parametrize(
  'points', [(), ((0, 1),), ((1, -1),), ((1, float('nan')),)]
)
def test_what_has_no_logarithm_is_refused(points):
  with pytest.raises(errors.UserError, match='above 0'):
    draw(plot.Line('1 row', points))
