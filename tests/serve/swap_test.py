# SPDX-License-Identifier: MIT
"""What may take a drafter's place, and what programs could not run."""

import jax
import numpy as np
import pytest

from jspec import errors
from jspec.decode import sampling
from jspec.depth import guard
from jspec.drafters import mixed, ngram
from jspec.serve import asks, swap
from jspec.testing import toy
from tests.serve import small


@pytest.fixture(scope='module')
def target():
  return toy.target()


def leaves(drafter):
  return jax.tree.leaves(drafter)


def test_a_drafter_of_the_same_form_takes_the_place(target):
  old, new = (toy.drafter(target, seed=seed) for seed in (1, 2))
  assert swap.replaced(old, new) is new


def test_a_member_takes_the_place_of_its_name_only(target):
  first, second, new = (toy.drafter(target, seed=seed) for seed in (1, 2, 3))
  old = mixed.Mixed({'a': first, 'ngram': ngram.NGram(2), 'b': second})
  got = swap.replaced(old, new, 'b')
  assert got.names == old.names
  for was, now in (
    (first, got.members[0]),
    (old.members[1], got.members[1]),
    (new, got.members[2]),
  ):
    for one, other in zip(leaves(was), leaves(now), strict=True):
      assert one is other
  # Programs tell arrays apart by their order.
  shapes = [leaf.shape for leaf in leaves(old)]
  assert [leaf.shape for leaf in leaves(got)] == shapes


def test_others_are_refused(target):
  one = toy.drafter(target)
  both = mixed.Mixed({'a': one, 'b': ngram.NGram(2)})
  other = 'another method, shapes or options'
  for old, new, name, message in (
    (one, toy.drafter(target, taps=(0, 2)), None, other),
    (one, ngram.NGram(2), None, other),
    (both, ngram.NGram(2), 'a', other),
    (both, ngram.NGram(3), 'b', other),
    (both, one, None, 'None cannot be replaced: there are a, b'),
    (both, one, 'c', "'c' cannot be replaced: there are a, b"),
    (one, one, 'a', 'without a name'),
    (None, one, None, 'decodes plainly'),
  ):
    with pytest.raises(errors.UserError, match=message):
      swap.replaced(old, new, name)


def texts(engine, number, change=None):
  """Answers to some prompts; `change` is called after three visits."""
  found = {}
  for i, prompt in enumerate(small.prompts()[:number]):
    params = sampling.SamplingParams(max_tokens=12)
    engine.submit(prompt, asks.Ask(params=params), request_id=i)
    found[i] = []
  num_visits = 0
  while engine.has_work:
    for event in engine.step():
      found[event.request_id] += event.tokens
    num_visits += 1
    if num_visits == 3 and change is not None:
      change()
  return found


@pytest.mark.slow
def test_answers_stay_and_drafts_change_when_a_drafter_is_swapped():
  served = toy.target(max_len=small.MAX_LEN)
  first, second = (toy.drafter(served, seed=seed) for seed in (1, 2))
  engine = small.make(served, first)
  engine.forms.pinned = guard.FULL

  seen = []
  engine.on_launch = lambda sent, used, *_: seen.append(used.confidence)

  def confidence():
    """All that was drafted for one request, by itself."""
    seen.clear()
    texts(engine, 1)
    return np.concatenate([of[:1] for of in seen])

  before, of_first = texts(engine, 6), confidence()
  assert engine.version == 0
  assert texts(engine, 6, lambda: engine.swap(second)) == before
  assert engine.version == 1
  of_second = confidence()
  with pytest.raises(errors.UserError, match='another method'):
    engine.swap(ngram.NGram(2))
  assert engine.version == 1
  np.testing.assert_array_equal(confidence(), of_second)
  engine.swap(first)
  np.testing.assert_array_equal(confidence(), of_first)
  assert not np.array_equal(of_first, of_second)
  assert engine.programs.num_missing == 0
