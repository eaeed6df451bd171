# SPDX-License-Identifier: MIT
"""How tokens came, and requests that want few drafts or none."""

import dataclasses
import types

import jax.numpy as jnp
import pytest

from jspec import errors, tree
from jspec.decode import asks as asks_lib
from jspec.decode import sampling
from jspec.depth import guard
from jspec.drafters import ngram
from jspec.serve import asks, launch
from jspec.testing import toy
from tests.serve import small

NUM_DRAFTS = 3


def draft(num_nodes):
  shape = len(num_nodes), NUM_DRAFTS + 1
  return tree.Draft(
    tokens=jnp.zeros(shape, jnp.int32),
    parents=tree.chain_parents(*shape),
    num_nodes=jnp.asarray(num_nodes),
    confidence=jnp.ones(shape),
  )


def test_rounds_say_how_their_tokens_came():
  """Two drafts right; cut at a draft; nothing drafted; at rest."""
  origins = jnp.full((4, 7), 9, jnp.int8)
  last = types.SimpleNamespace(
    draft=draft([4, 4, 1, 4]),
    path=jnp.asarray([[1, 2, 0], [1, 2, 3], [0, 0, 0], [1, 0, 0]]),
    num_committed=jnp.asarray([3, 2, 1, 0]),
  )
  found = launch._with_origins(origins, jnp.asarray([0, 1, 6, 2]), last)
  plain, right, bonus = launch.PLAIN, launch.DRAFT, launch.BONUS
  assert found.tolist() == [
    [right, right, bonus, 9, 9, 9, 9],
    [9, right, right, 9, 9, 9, 9],
    [9, 9, 9, 9, 9, 9, plain],
    [9] * 7,
  ]


def test_caps_cut_drafts_to_their_first_nodes():
  rows = asks_lib.init(4, 16)
  wanted = dataclasses.replace(rows, max_drafts=jnp.asarray([0, 2, 5, 128]))
  given = draft([4, 4, 4, 2])
  assert asks_lib.capped(wanted, given).num_nodes.tolist() == [1, 3, 4, 2]
  assert asks_lib.capped(rows, given).num_nodes.tolist() == [4, 4, 4, 2]


def test_caps_below_nothing_are_refused():
  with pytest.raises(errors.UserError, match='max_drafts=-1; give 0'):
    asks.check('a', (1,), asks.Ask(max_drafts=-1), 9, ())


def test_nobody_drafts_where_nothing_may_be_verified():
  assert asks.Ask(drafter='none').is_plain and asks.Ask(max_drafts=0).is_plain
  assert asks.Ask(drafter='none', max_drafts=4).most_drafts == 0
  assert not asks.Ask().is_plain and not asks.Ask(max_drafts=1).is_plain
  assert asks.Ask(max_drafts=10**12).most_drafts == asks_lib.UNLIMITED


@pytest.fixture(scope='module')
def engine():
  target = toy.target(max_len=small.MAX_LEN)
  made = small.make(target, ngram.NGram(NUM_DRAFTS))
  made.forms.pinned = guard.FULL
  return made


def serve(engine, changes):
  """Texts and sums of events of prompts that repeat, an ask each."""
  prompts = [([3, 5, 7, 9] * 4)[i:] for i in range(len(changes))]
  texts, sums = {}, {}
  for i, (prompt, change) in enumerate(zip(prompts, changes, strict=True)):
    params = sampling.SamplingParams(max_tokens=20)
    engine.submit(prompt, asks.Ask(params=params, **change), request_id=i)
    texts[i], sums[i] = [], []
  while engine.has_work:
    for event in engine.step():
      assert len(event.origins) == len(event.tokens)
      texts[event.request_id] += event.tokens
      sums[event.request_id].append(event)
  return texts, sums


@pytest.mark.slow
def test_caps_change_no_token_and_hold(engine):
  free, events = serve(engine, [{}] * 4)
  # The negative control: without a cap, rounds draft more than any cap below,
  # and the target agrees with some of it.
  whole = [event for of in events.values() for event in of]
  assert any(event.num_drafted > 2 * event.num_rounds for event in whole)
  assert sum(event.num_accepted for event in whole) > 0
  wanted = [
    dict(max_drafts=0),
    dict(max_drafts=1),
    dict(drafter='none'),
    dict(max_drafts=2),
  ]
  texts, events = serve(engine, wanted)
  assert texts == free
  for (i, of), most in zip(events.items(), (0, 1, 0, 2), strict=True):
    for event in of:
      assert event.num_drafted <= most * event.num_rounds
      assert event.num_accepted <= event.num_drafted
      came = event.origins
      assert set(came) <= (
        {'plain'} if not most else {'plain', 'draft', 'bonus'}
      )
      # Every round ends with a token that was no draft, but for cut ones.
      assert event.num_rounds - (len(came) - came.count('draft')) in (0, 1)
    num_rounds = sum(event.num_rounds for event in of)
    if not most:
      assert num_rounds == len(texts[i])


@pytest.mark.slow
def test_rows_that_want_nothing_are_served_by_the_plain_program(engine):
  before = dict(engine.metrics.num_launches)
  serve(engine, [dict(max_drafts=0)] * 4)
  after = engine.metrics.num_launches
  ran = {form for form in after if after[form] != before.get(form, 0)}
  assert ran == {guard.PLAIN}
  assert engine.programs.num_missing == 0
