# SPDX-License-Identifier: MIT
"""Requests that choose who plans their rounds, beside others that do not."""

import dataclasses
import types

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors, tree
from jspec.decode import asks as asks_lib
from jspec.decode import sampling
from jspec.depth import costs as costs_lib
from jspec.depth import dcut, guard, static
from jspec.drafters import ngram
from jspec.serve import asks, launch
from jspec.testing import toy
from tests.serve import forms_test, small

NUM_DRAFTS = 3
ANY = asks_lib.ANY_POLICY
POLICIES = (dcut.DCut(), static.Static(), static.Static(depth=1))


def plan(own, policy):
  """Counts of four rows whose drafts are worth little; the last one rests."""
  shape = 4, NUM_DRAFTS + 1
  draft = tree.Draft(
    tokens=jnp.zeros(shape, jnp.int32),
    parents=tree.chain_parents(*shape),
    num_nodes=jnp.asarray([4, 4, 3, 4]),
    confidence=jnp.full(shape, 0.01),
  )
  state = types.SimpleNamespace(
    remaining=jnp.asarray([9, 9, 9, 0]),
    scores=jnp.full((4, NUM_DRAFTS), jnp.nan),
    asks=dataclasses.replace(asks_lib.init(4, 16), policy=jnp.asarray(own)),
  )
  inputs = types.SimpleNamespace(
    policy=jnp.int32(policy),
    budget=jnp.int32(launch.BY_POLICY),
    is_measuring=jnp.asarray(False),
    temperatures=jnp.ones((4, NUM_DRAFTS)),
    costs=costs_lib.Costs(
      nodes=jnp.asarray([4, 8, 16]),
      verify_s=jnp.asarray([1.0, 2.0, 4.0]),
      draft_s=jnp.float32(0.0),
    ),
  )
  prior = jnp.ones((NUM_DRAFTS,))
  return launch._plan(draft, state, inputs, POLICIES, prior).tolist()


@pytest.mark.slow
@pytest.mark.parametrize(
  'own, policy, counts',
  [
    # Nobody chose: the policy of the launch plans all.
    ([ANY] * 4, 0, [0, 0, 0, 0]),
    ([ANY] * 4, 1, [3, 3, 2, 0]),
    ([ANY] * 4, 2, [1, 1, 1, 0]),
    # Who chose has its own, the others what they had.
    ([ANY, 1, ANY, 1], 0, [0, 3, 0, 0]),
    ([1, ANY, 2, 2], 0, [3, 0, 1, 0]),
    ([0, ANY, 2, ANY], 1, [0, 3, 1, 0]),
  ],
)
def test_rows_are_planned_by_who_they_chose(own, policy, counts):
  assert plan(own, policy) == counts


def test_policies_that_are_not_loaded_are_refused():
  asks.check('a', (1,), asks.Ask(policy='dcut'), 9, ('static', 'dcut'))
  with pytest.raises(errors.UserError, match="'dcut' is not loaded; .*static"):
    asks.check('a', (1,), asks.Ask(policy='dcut'), 9, ('static',))
  with pytest.raises(errors.UserError, match='none, since it decodes plainly'):
    asks.check('a', (1,), asks.Ask(policy='dcut'), 9, ())


def test_who_drafts_nothing_needs_no_policy():
  chose = asks.Ask(policy='static')
  silent = asks.Ask(policy='static', drafter='none')
  drafts = {'wants_drafts': True, 'wants_policy': False}
  assert asks.wishes([silent, asks.Ask()]) == drafts
  assert asks.wishes([chose, asks.Ask()]) == drafts | {'wants_policy': True}
  assert asks.wishes([silent]) == {'wants_drafts': False, 'wants_policy': False}
  assert asks.wishes([]) == {'wants_drafts': False, 'wants_policy': False}


def test_a_chosen_policy_goes_before_the_guard():
  chooses, _ = forms_test.make(0.001)
  choice = chooses.choose(2, 30.0, 2, wants_policy=True)
  assert (choice.form, choice.chooser) == (guard.ADAPTIVE, None)
  assert choice.budget == launch.BY_POLICY
  assert chooses.choose(2, 30.0, 2).chooser is not None
  chooses.switch_off()
  assert chooses.choose(2, 30.0, 2, wants_policy=True).form == guard.PLAIN


@pytest.mark.slow
def test_a_chosen_policy_changes_rounds_and_no_token():
  engine = small.make(
    toy.target(max_len=small.MAX_LEN),
    ngram.NGram(NUM_DRAFTS),
    policies=('static,depth=0', 'static,depth=1', 'static'),
  )

  def serve(policies):
    prompts = [([3, 5, 7, 9] * 4)[i:] for i in range(len(policies))]
    texts, drafted = {}, np.zeros((len(policies), 2), int)
    for i, (prompt, policy) in enumerate(zip(prompts, policies, strict=True)):
      params = sampling.SamplingParams(max_tokens=20)
      ask = asks.Ask(params=params, policy=policy)
      engine.submit(prompt, ask, request_id=i)
      texts[i] = []
    while engine.has_work:
      for event in engine.step():
        texts[event.request_id] += event.tokens
        drafted[event.request_id] += event.num_drafted, event.num_rounds
    return texts, (drafted[:, 0] / drafted[:, 1]).tolist()

  engine.forms.pinned = guard.ADAPTIVE
  plain, depths = serve([None] * 4)
  assert depths == [0] * 4
  engine.forms.pinned = None
  texts, depths = serve([None, 'static,depth=1', 'static', 'static,depth=0'])
  assert texts == plain
  assert depths[0] == depths[3] == 0 and 0 < depths[1] <= 1 < depths[2]
