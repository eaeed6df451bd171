# SPDX-License-Identifier: MIT
"""The suite finds drafters out that say too much of their confidence."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest

from jspec.testing import drafter_suite, toy
from tests.evals import drafters


class Looks(drafters.Sampled):
  """Is surer of a draft if the token `back` before it is even."""

  def __init__(self, back, claims):
    super().__init__(np.ones(toy.VOCAB_SIZE) / toy.VOCAB_SIZE, 3)
    self.back = back
    self.confidence_depends = claims
    if claims is None:
      del self.confidence_depends

  def propose(self, *given):
    draft = super().propose(*given)
    if self.back is None:
      return draft
    at = np.clip(np.arange(4) - self.back, 0, 3)
    seen = draft.tokens[:, at] % 2
    confidence = jnp.where(seen == 0, 0.9, 0.1).at[:, 0].set(1.0)
    return dataclasses.replace(draft, confidence=confidence)


@functools.cache
def target():
  return toy.target()


def check(back, claims):
  suite = drafter_suite.Suite(Looks(back, claims), target())
  suite.check_confidence_depends_as_claimed()


@pytest.mark.few(2)
@pytest.mark.parametrize(
  'back, claims',
  [
    (None, 'prefix'),
    (1, 'before'),
    (2, 'before'),
    (0, 'token'),
    (0, None),  # Who says nothing is taken to look at everything.
  ],
)
def test_honest_drafters_pass(back, claims):
  check(back, claims)


@pytest.mark.parametrize(
  'back, claims',
  [(1, 'prefix'), (0, 'prefix'), (0, 'before'), (-1, 'before')],
)
def test_liars_are_found_out(back, claims):
  with pytest.raises(AssertionError, match=f"is '{claims}'"):
    check(back, claims)


def test_a_claim_that_is_none_is_named():
  with pytest.raises(AssertionError, match="'nothing'"):
    check(None, 'nothing')
