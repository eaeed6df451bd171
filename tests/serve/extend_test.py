# SPDX-License-Identifier: MIT
"""LibraSpec may ask the drafter to go on, and no token changes."""

import dataclasses

import pytest

from jspec import errors
from jspec.decode import sampling
from jspec.serve import offline as offline_lib
from jspec.serve import settings
from jspec.testing import toy
from tests.evals import drafters
from tests.serve import small

GREEDY = sampling.SamplingParams(max_tokens=24)
WANTED = {'policies': ('libraspec,alpha=60',), 'extend_to': 8}


@pytest.mark.slow
def test_drafts_that_go_on_change_no_token():
  target = toy.target(max_len=small.MAX_LEN)
  plain = small.make(target, None)
  engine = small.make(target, toy.drafter(target), **WANTED)
  assert engine.sizes.scheduler.max_drafts == 8 > 3
  engine.forms.pinned = 'adaptive'
  for wanted in (GREEDY, dataclasses.replace(GREEDY, temperature=0.9)):
    got = offline_lib.generate(engine, small.prompts(), wanted)
    assert got == offline_lib.generate(plain, small.prompts(), wanted)
  # Three at a time and then three more.
  assert engine.metrics.num_by_depth[4:].sum() > 0


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'policies': ('dcut',)}, 'give libraspec first'),
    ({'rule': 'token'}, 'drafts are not extended'),
    ({'extend_to': 3}, 'proposes 3 by itself'),
  ],
)
def test_what_cannot_be_extended_is_refused(changes, message):
  chosen = settings.Settings(**{**WANTED, **changes})
  with pytest.raises(errors.UserError, match=message):
    settings.extended(chosen, toy.drafter(toy.target()))


def test_drafters_that_cannot_go_on_are_refused():
  with pytest.raises(errors.UserError, match='Garbage cannot go on'):
    settings.extended(settings.Settings(**WANTED), drafters.Garbage(64))
