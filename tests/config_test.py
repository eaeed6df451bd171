# SPDX-License-Identifier: MIT
"""Argument strings, overrides and frozen configs: unknown is an error."""

import dataclasses

import ml_collections
import pytest

from jspec import config as config_lib
from jspec import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class Inner:
  rate: float = 0.1
  layers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outer:
  name: str
  count: int = 1
  fast: bool = False
  size: int | None = None
  inner: Inner = Inner()


def test_arg_takes_types_from_defaults():
  arg = config_lib.parse_arg(
    'target=x,smoke,steps=3,rate=1e-3',
    target='',
    smoke=False,
    steps=1,
    rate=1.0,
  )
  assert arg.to_dict() == dict(target='x', smoke=True, steps=3, rate=1e-3)


@pytest.mark.parametrize(
  'text, said',
  [
    ('smok', 'did you mean `smoke`'),
    ('steps=two', 'not of type int'),
    ('steps=2.5', 'not of type int'),
    ('smoke=yes', 'not of type bool'),
    ('steps', 'needs a value'),
    ('steps=1,steps=2', 'twice'),
  ],
)
def test_arg_is_refused(text, said):
  with pytest.raises(errors.UserError, match=said):
    config_lib.parse_arg(text, smoke=False, steps=1)


def test_build_makes_nested_frozen_values():
  values = ml_collections.ConfigDict(
    dict(name='n', inner=dict(rate=1, layers=[1, 2]))
  )
  built = config_lib.build(Outer, values)
  assert built == Outer(name='n', inner=Inner(rate=1.0, layers=(1, 2)))
  with pytest.raises(dataclasses.FrozenInstanceError):
    built.count = 2


@pytest.mark.parametrize(
  'values, said',
  [
    (dict(name='n', cuont=2), 'no key `cuont`; did you mean `count`'),
    (dict(name='n', inner=dict(rat=1)), 'config.inner has no key `rat`'),
    (dict(), 'misses the key `name`'),
    (dict(name='n', count='2'), 'config.count is .2. but must be of type int'),
    (dict(name='n', count=True), 'must be of type int'),
    (dict(name='n', fast=1), 'must be of type bool'),
    (dict(name='n', inner=3), 'must be a section'),
  ],
)
def test_build_is_refused(values, said):
  with pytest.raises(errors.UserError, match=said):
    config_lib.build(Outer, values)


def test_overrides_keep_types():
  values = ml_collections.ConfigDict(
    dict(count=1, size=None, fast=False, inner=dict(rate=0.1, layers=(1,)))
  )
  config_lib.apply_overrides(
    values,
    ['count=5', 'size=7', 'fast=true', 'inner.rate=2', 'inner.layers=1,2,3'],
  )
  assert values.to_dict() == dict(
    count=5, size=7, fast=True, inner=dict(rate=2.0, layers=(1, 2, 3))
  )


@pytest.mark.parametrize(
  'override, said',
  [
    ('inner.rat=1', 'did you mean `rate`'),
    ('count.x=1', 'no key `count.x`'),
    ('count', 'no value'),
    ('inner=1', 'is a section'),
    ('count=1.5', 'not of type int'),
  ],
)
def test_override_is_refused(override, said):
  values = ml_collections.ConfigDict(dict(count=1, inner=dict(rate=0.1)))
  with pytest.raises(errors.UserError, match=said):
    config_lib.apply_overrides(values, [override])


def test_missing_config_file_is_refused():
  with pytest.raises(errors.UserError, match='no config file'):
    config_lib.load_file('nowhere.py:smoke')
