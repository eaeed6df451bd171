# SPDX-License-Identifier: MIT
"""Policies by name, and what is said when there is none."""

import dataclasses

import pytest

from jspec import errors
from jspec.depth import api, base, dcut, libraspec, static


@dataclasses.dataclass(frozen=True)
class Mine(static.Static):
  """A policy of somebody else."""


@pytest.mark.parametrize(
  'spec, expected',
  [
    ('dcut', dcut.DCut()),
    ('dcut,floor=1,mode=stale', dcut.DCut(floor=1, mode='stale')),
    ('dcut, ratios=0.25/1', dcut.DCut(ratios=(0.25, 1.0))),
    ('static', static.Static()),
    ('static,depth=4', static.Static(depth=4)),
    ('static,depth=none', static.Static()),
    ('libraspec,alpha=2', libraspec.LibraSpec(alpha=2.0)),
    (f'{__name__}:Mine,depth=2', Mine(depth=2)),
  ],
)
def test_spec_names_a_policy_and_its_options(spec, expected):
  assert api.make(spec) == expected


@pytest.mark.parametrize(
  'spec, parts',
  [
    ('d-cut', ("'d-cut'", *api.POLICIES)),
    ('', api.POLICIES),
    ('dcut,flor=1', ("'flor'", 'floor', 'ratios', 'mode')),
    ('first_drop,floor=1', ("'floor'", 'none')),
    ('dcut,floor=1,floor=2', ('twice',)),
    ('dcut,floor', ('floor=VALUE',)),
    ('dcut,floor=', ('floor=VALUE',)),
    ('dcut,floor=one', ("floor='one'", 'number')),
    ('dcut,floor=1.5', ("floor='1.5'",)),
    ('dcut,ratios=0.5;1', ('joined by /',)),
    ('dcut,mode=fresh', ("'fresh'", 'live', 'stale')),
    ('libraspec,alpha=-1', ('alpha',)),
    ('no_such_package.rules:Mine', ('module:attr',)),
    (f'{__name__}:Other', ('module:attr',)),
    (f'{__name__}:pytest', ('dataclass',)),
  ],
)
def test_what_is_unknown_is_refused_with_what_there_is(spec, parts):
  with pytest.raises(errors.UserError) as caught:
    api.make(spec)
  for part in parts:
    assert part in str(caught.value)
  assert '\n' not in str(caught.value)


def test_every_policy_can_be_named_and_says_what_it_reads():
  for name in api.POLICIES:
    policy = api.make(name)
    assert policy.reads in (base.NONE, base.EARLIER, base.ALL)
    assert dataclasses.is_dataclass(policy) and hash(policy) is not None
    assert isinstance(policy, base.DepthPolicy)
