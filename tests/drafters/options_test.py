# SPDX-License-Identifier: MIT
"""Options of decoding: only those, only what fits, all at once."""

import dataclasses

import pytest

from jspec import errors
from jspec.drafters import options

ALLOWED = ('depth', 'least', 'widths')


@dataclasses.dataclass(frozen=True)
class _Config:
  size: int = 8
  depth: int = 3
  least: float = 0.0
  widths: tuple[int, ...] = (1, 2)

  def __post_init__(self):
    options.need(self.depth <= self.size, 'depth', self.depth, 'no more')


def test_values_are_those_given_in_the_kind_of_the_field():
  changes = {'depth': 4, 'least': 1, 'widths': [3]}
  config = options.replaced(_Config(), ALLOWED, changes)
  assert config == _Config(depth=4, least=1.0, widths=(3,))
  assert isinstance(config.least, float)
  assert options.replaced(config, ALLOWED, {}) == config


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'size': 9}, 'size: no option of this drafter; there are depth, least'),
    ({'depth': 9}, 'depth=9: expected no more'),
    ({'depth': 1.5}, 'depth=1.5: expected int'),
    ({'depth': '4'}, "depth='4': expected int"),
    ({'least': '4'}, "least='4': expected float"),
    ({'widths': 3}, 'widths=3: expected tuple'),
  ],
)
def test_what_does_not_fit_is_refused(changes, message):
  with pytest.raises(errors.UserError, match=message):
    options.replaced(_Config(), ALLOWED, changes)
