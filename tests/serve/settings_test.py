# SPDX-License-Identifier: MIT
"""Policies are allowed by what a drafter says of its confidence."""

import types

import pytest

from jspec import errors
from jspec.serve import settings


def resolve(depends, rule, policy):
  target = types.SimpleNamespace(max_len=64)
  drafter = types.SimpleNamespace(num_draft_tokens=3)
  if depends is not None:
    drafter.confidence_depends = depends
  chosen = settings.Settings(rule=rule, policies=(policy,))
  return settings.resolve(chosen, target, drafter)


@pytest.mark.parametrize(
  ('depends', 'rule', 'policy'),
  [
    ('token', 'walk', 'dcut'),
    (None, 'walk', 'dcut'),
    ('token', 'token', 'dcut,mode=stale'),
    ('token', 'traversal', 'dcut,mode=stale'),
    (None, 'block', 'static,depth=2'),
    ('before', 'token', 'first_drop'),
    ('before', 'block', 'dcut,ratios=0.5'),
    ('prefix', 'block', 'dcut'),
    ('prefix', 'traversal', 'libraspec'),
  ],
)
def test_what_is_lossless_is_allowed(depends, rule, policy):
  sizes = resolve(depends, rule, policy)
  assert sizes.rule == rule and sizes.scales_confidence


@pytest.mark.parametrize(
  ('depends', 'rule', 'policy', 'why'),
  [
    ('token', 'token', 'dcut', "DCut.*'token'.*drafted token itself"),
    ('token', 'block', 'first_drop', 'FirstDrop.*drafted token itself'),
    ('before', 'token', 'dcut', 'DCut.*tokens before each'),
    ('before', 'traversal', 'first_drop', 'FirstDrop.*traversal'),
    # A drafter that says nothing may look at anything.
    (None, 'token', 'dcut', 'says so .confidence_depends.'),
    ('nothing', 'walk', 'dcut', "confidence 'nothing'"),
  ],
)
def test_what_is_not_is_refused_by_name(depends, rule, policy, why):
  with pytest.raises(errors.UserError, match=why):
    resolve(depends, rule, policy)
