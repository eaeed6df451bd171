# SPDX-License-Identifier: MIT
"""What every drafter says of its confidence; the suite checks that it is so."""

import types

import pytest

from jspec.drafters import base, dfly, dspark, mixed, ngram, suffix
from jspec.testing import toy
from tests.drafters import small_d2sd, small_eagle3, small_mtp, specblock_toy


@pytest.fixture(scope='module')
def target():
  return toy.target()


def of(drafter, **changes):
  drafter.set_options(**changes)
  return base.confidence_depends(drafter)


def test_drafts_that_are_functions_of_the_prefix(target):
  assert base.confidence_depends(ngram.NGram()) == 'prefix'
  assert base.confidence_depends(suffix.Suffix(suffix.Config())) == 'prefix'
  assert of(small_d2sd.drafter(target)) == 'prefix'


def test_parallel_slots_look_at_nothing_and_sequential_ones_before(target):
  assert of(toy.drafter(target)) == 'prefix'
  assert of(specblock_toy.drafter(target)) == 'prefix'
  for drafter in (
    small_eagle3.drafter(target),
    small_mtp.drafter(target),
    toy.drafter(target, method=dfly.METHOD),
    toy.drafter(target, method=dspark.METHOD),
  ):
    assert of(drafter, tree_size=0) == 'before'
    # A drawn tree has a fixed shape and fixed confidence.
    assert of(drafter, tree_size=4) == 'prefix'


def test_a_head_that_sees_its_slot_alone_looks_at_nothing(target):
  drafter = toy.drafter(
    target, method=dspark.METHOD, confidence_sees_token=False
  )
  assert of(drafter) == 'prefix'


def test_a_mixture_looks_at_as_much_as_any_member(target):
  def mix(*members):
    return base.confidence_depends(
      mixed.Mixed({str(i): member for i, member in enumerate(members)})
    )

  copies, sees = ngram.NGram(), toy.drafter(target, method=dspark.METHOD)
  assert mix(copies) == 'prefix'
  assert mix(copies, sees) == 'before'
  silent = ngram.NGram()
  del silent.confidence_depends
  assert mix(sees, silent) == 'token'


def test_who_says_nothing_is_not_trusted():
  assert base.confidence_depends(types.SimpleNamespace()) == 'token'
