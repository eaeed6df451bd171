# SPDX-License-Identifier: MIT
"""A grid of shares is XML with a cell for each, and stacks below a plot."""

import xml.etree.ElementTree as ElementTree

import pytest

from jspec import errors
from jspec.bench import plot, shares_plot

NAMESPACE = '{http://www.w3.org/2000/svg}'


def draw(*rows):
  return shares_plot.svg(rows, title='a<b', label='drafts')


def test_cells_are_as_dark_as_their_share():
  rows = [
    shares_plot.Row('1 dcut', (0.25, 0.75)),
    shares_plot.Row('<16>', (0.0, 0.004, 0.996)),
  ]
  root = ElementTree.fromstring(draw(*rows))
  cells = [r for r in root.findall(f'{NAMESPACE}rect') if r.get('fill-opacity')]
  found = [float(cell.get('fill-opacity')) for cell in cells]
  assert found == [0.25, 0.75, 0.0, 0.004, 0.996]
  texts = [text.text for text in root.findall(f'{NAMESPACE}text')]
  assert {'1 dcut', '<16>', 'a<b', 'drafts', '25', '75', '0', '100'} <= set(
    texts
  )
  for cell in cells:
    right = float(cell.get('x')) + float(cell.get('width'))
    bottom = float(cell.get('y')) + float(cell.get('height'))
    assert right <= float(root.get('width'))
    assert bottom <= float(root.get('height'))
  # One below the other, columns beneath each other.
  assert cells[0].get('x') == cells[2].get('x')
  assert float(cells[2].get('y')) > float(cells[0].get('y'))


@pytest.mark.parametrize(
  'rows',
  [(), (shares_plot.Row('x', (1.5,)),), (shares_plot.Row('x', (-1.0,)),)],
)
def test_what_is_no_share_is_refused(rows):
  with pytest.raises(errors.UserError, match='shares from 0 to 1'):
    draw(*rows)


def test_stacked_drawings_do_not_overlap():
  line = plot.Line('one', ((1, 1), (2, 3)))
  first = plot.svg([line], title='t', x_label='x', y_label='y')
  second = draw(shares_plot.Row('x', (1.0,)))
  root = ElementTree.fromstring(plot.stacked(first, second, first))
  parts = root.findall(f'{NAMESPACE}svg')
  assert len(parts) == 3
  end = 0
  for part in parts:
    assert int(part.get('y')) == end
    end += int(part.get('height'))
  assert int(root.get('height')) == end
