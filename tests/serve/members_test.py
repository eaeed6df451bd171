# SPDX-License-Identifier: MIT
"""Drafters are named where there are names, and refused elsewhere."""

import pytest

from jspec import errors
from jspec.drafters import mixed, ngram
from jspec.serve import members


def test_without_a_mixture_there_is_no_choice():
  one = ngram.NGram(2)
  assert members.name('a', one, None) is members.name('a', None, None) is None
  # Nobody drafts for it, but its pages are like those of the others.
  assert members.name('a', one, 'none') is members.name('a', None, 'none')
  assert members.index(one, None) == 0
  for drafter, wanted in ((one, 'ngram'), (None, 'ngram')):
    with pytest.raises(errors.UserError, match="request 'a'.*Mixed"):
      members.name('a', drafter, wanted)


def test_a_mixture_of_one_can_be_switched_off():
  only = mixed.Mixed({'ngram': ngram.NGram(2)})
  names = [members.name('a', only, name) for name in (None, 'ngram', 'none')]
  assert names == ['ngram', 'ngram', 'none']
  indices = [members.index(only, name) for name in names]
  assert indices == [0, 0, -1]


def test_members_are_named_in_full_and_others_refused():
  two = mixed.Mixed({'a': ngram.NGram(1), 'b': ngram.NGram(2)})
  asked = (None, 'a', 'b', 'none')
  assert [members.name(7, two, name) for name in asked] == [
    'a',
    'a',
    'b',
    'none',
  ]
  assert [members.index(two, name) for name in asked] == [0, 0, 1, -1]
  with pytest.raises(errors.UserError, match="request 7: drafter 'c'.*a, b"):
    members.name(7, two, 'c')
