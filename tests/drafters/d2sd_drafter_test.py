# SPDX-License-Identifier: MIT
"""Block and branches: what is fed, what comes of it, what state there is."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jspec import errors
from jspec.cache import paged
from jspec.drafters import base, d2sd, d2sd_loss
from jspec.testing import drafter_suite, toy
from jspec.trees import branches
from tests.drafters import small_d2sd
from tests.trees import shape

SHIFTED = {'label_shift': 1, 'num_draft_tokens': 4}
MEMBERS = {
  'shared': {'num_cuts': 3},
  'separate': {
    'shared': False,
    'draft_token_ids': small_d2sd.DRAFT_IDS,
    **SHIFTED,
  },
}
INDEX = 9  # Of the anchor.


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(params=MEMBERS, scope='module')
def member(request, target):
  return small_d2sd.drafter(target, **MEMBERS[request.param])


@jax.jit
def _prefill(drafter, batch):
  """State and table in front of token INDEX, committed in two calls.

  Rows behind what is committed are garbage on purpose.
  """
  table = paged.contiguous_table(2, 5)
  state = drafter.init_state(table, 10, 4)
  for start, count in ((0, 5), (5, INDEX - 5)):
    rows = base.Committed(
      batch.tokens[:, start:],
      batch.taps[:, start:],
      jnp.full((2,), count, jnp.int32),
      batch.tokens[:, INDEX],
    )
    state = drafter.commit(state, table, rows)
    table = paged.advance(table, rows.num_rows, jnp.zeros((), bool))
  return state, table


@jax.jit
def _train(drafter, batch, at, given):
  """States of the second drafter's slots, in the training form."""
  second = drafter.drafters[-1]
  slots = d2sd_loss.slots(second, batch, at, given)
  return second.train_hidden(batch, at, slots)


_redraft = jax.jit(lambda drafter, *args: drafter.redraft(*args))


def _given(drafter, batch, at, count):
  return _train(drafter, batch, at, jnp.full(at.index.shape, count))


def _assert_equal(got, want):
  leaves = zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True)
  for a, b in leaves:
    np.testing.assert_array_equal(a, b)


def test_training_equals_serving_with_the_same_prefix(member, target):
  batch, at = small_d2sd.batch(target), small_d2sd.at(4, INDEX)
  state, table = _prefill(member, batch)
  depth, size = member.config.num_labels, member.config.block_size
  kept = jnp.broadcast_to(jnp.arange(depth), (2, depth))
  fed = branches.prompts(
    batch.tokens[:, INDEX],
    batch.tokens[:, INDEX + 1 :],
    kept,
    toy.MASK_TOKEN_ID,
    size,
  )
  served = _redraft(member, state, table, fed)
  for count in range(depth):
    want = _given(member, batch, at, count)[:, 1]
    np.testing.assert_allclose(served[:, count], want, atol=1e-5)
    # The control: one token more is another prompt.
    other = _given(member, batch, at, (count + 1) % depth)[:, 1]
    assert np.abs(served[:, count] - other).max() > 1e-3


@pytest.mark.slow
def test_tree_is_the_block_and_its_branches(member, target):
  """Every path, from the training form on the tokens that were drafted."""
  batch = small_d2sd.batch(target)
  state, table = _prefill(member, batch)
  anchor = batch.tokens[:, INDEX]
  draft = drafter_suite.propose(member, state, table, anchor, None, None)
  shape.check(draft, anchor)
  block = drafter_suite.propose(
    member.first, state[0], table, anchor, None, None
  )
  depth, drafted = member.config.num_draft_tokens, block.tokens[:, 1:]
  end = INDEX + 1 + depth
  text = batch.tokens.at[:, INDEX + 1 : end].set(drafted)
  batch = dataclasses.replace(batch, tokens=text)
  kept = np.asarray(
    branches.cuts(block.confidence[:, 1:], member.config.num_cuts)
  )
  at, head = small_d2sd.at(INDEX), member.first.head[...]
  wanted = [{tuple(row.tolist())} for row in np.asarray(drafted)]
  for count in range(depth):
    again = np.asarray(_given(member, batch, at, count)[:, 0] @ head)
    again = again.argmax(-1)[:, :depth]
    if member.draft_token_ids is not None:
      again = small_d2sd.DRAFT_IDS[again]
    for row in range(2):
      if count in kept[row]:
        path = [*drafted[row, :count].tolist(), *again[row, count:].tolist()]
        wanted[row].add(tuple(path))
  more = 0
  for row in range(2):
    prefixes = {path[:n] for path in wanted[row] for n in range(depth + 1)}
    assert set(shape.paths(draft, row)) == prefixes
    more += len(prefixes) - depth - 1
  assert more > 0  # Branches that say something else.


@pytest.mark.slow
@pytest.mark.parametrize('changes', [{}, {'tree_size': 7, **SHIFTED}])
def test_without_cuts_it_is_dflash_to_the_bit(target, changes):
  drafter = small_d2sd.drafter(target, num_cuts=0, **changes)
  dflash = toy.drafter(target, **changes)
  nnx.update(dflash, nnx.state(drafter.first, nnx.Param))
  batch = small_d2sd.batch(target)
  state, table = _prefill(drafter, batch)
  theirs, _ = _prefill(dflash, batch)
  anchor = batch.tokens[:, INDEX]
  got = drafter_suite.propose(drafter, state, table, anchor, None, None)
  want = drafter_suite.propose(dflash, theirs, table, anchor, None, None)
  assert drafter.num_draft_tokens == dflash.num_draft_tokens
  _assert_equal((state[0], got), (theirs, want))


@pytest.mark.slow
def test_conformance(member, target):
  drafter_suite.run(member, target)


@pytest.mark.slow
def test_options_cut_the_tree_and_temperature_changes_nothing(target):
  drafter = small_d2sd.drafter(target, num_cuts=3)
  batch = small_d2sd.batch(target)
  state, table = _prefill(drafter, batch)
  args = (state, table, batch.tokens[:, INDEX], None, None)
  whole = drafter_suite.propose(drafter, *args)
  assert whole.tokens.shape[1] == 1 + 3 + 3 + 2 + 1
  hot = (jnp.asarray([0.0, 1.5]), jax.random.split(jax.random.key(0), 2))
  _assert_equal(drafter_suite.propose(drafter, *args[:3], *hot), whole)
  drafter.set_options(tree_size=5)
  assert drafter.num_draft_tokens == 5
  few = drafter_suite.propose(drafter, *args)
  np.testing.assert_array_equal(few.tokens, whole.tokens[:, :6])
  np.testing.assert_array_equal(few.parents, whole.parents[:, :6])
  expected = shape.survival(whole)[:, 1:].sum(axis=1)
  between = float(expected.mean())
  drafter.set_options(tree_size=0, min_expected_accepted=between)
  some = drafter_suite.propose(drafter, *args)
  want = np.where(expected >= between, whole.num_nodes, 1)
  np.testing.assert_array_equal(some.num_nodes, want)
  assert 1 in want and want.max() > 1


def test_options_reach_both_drafters(target):
  drafter = small_d2sd.drafter(target, shared=False)
  drafter.set_options(num_draft_tokens=2, num_cuts=1)
  assert drafter.num_draft_tokens == 4
  assert [one.num_draft_tokens for one in drafter.drafters] == [2, 2]
  drafter.set_options(num_cuts=0, tree_size=6)
  assert drafter.num_draft_tokens == 6
  assert [one.num_draft_tokens for one in drafter.drafters] == [6, 6]
  for options, message in (
    ({'num_cuts': 3}, r'num_cuts=3: expected 0\.\.2'),
    ({'width': 64}, 'width: no option of this drafter'),
  ):
    with pytest.raises(errors.UserError, match=message):
      drafter.set_options(**options)
  assert drafter.config.num_cuts == 0


@pytest.mark.parametrize(
  'changes, message',
  [
    ({'num_cuts': 4}, r'num_cuts=4: expected 0\.\.3'),
    ({'correction_width': 8}, 'correction_width=8'),
    ({'markov_rank': 8}, 'markov_rank=8'),
    ({'selector_rank': 8}, 'selector_rank=8'),
    ({'has_confidence': True}, 'has_confidence=True'),
    ({'fusion': 'gated'}, 'fusion=gated'),
    (
      {'block_size': 32, 'num_draft_tokens': 31, 'num_cuts': 4},
      'num_cuts=4: .* at most 127 nodes, not 149',
    ),
  ],
)
def test_what_it_cannot_be_is_refused(target, changes, message):
  with pytest.raises(errors.UserError, match=message):
    small_d2sd.drafter(target, **changes)


@pytest.mark.slow
def test_layers_apart_say_the_same(target):
  drafter = small_d2sd.drafter(target, shared=False)
  batch = small_d2sd.batch(target)
  state, table = _prefill(drafter, batch)
  args = (table, batch.tokens[:, INDEX], None, None)
  want = drafter_suite.propose(drafter, state, *args)
  drafter.split_layers()
  for one in drafter.drafters:
    assert one.block.tiled is not None
  state, _ = _prefill(drafter, batch)
  got = drafter_suite.propose(drafter, state, *args)
  np.testing.assert_array_equal(got.tokens, want.tokens)
  np.testing.assert_allclose(got.confidence, want.confidence, atol=1e-5)


def test_weights_are_counted_once(target):
  count = [
    sum(x.size for x in jax.tree.leaves(nnx.state(one, nnx.Param)))
    for one in (
      toy.drafter(target),
      small_d2sd.drafter(target),
      small_d2sd.drafter(target, shared=False),
    )
  ]
  assert count[0] == count[1] == count[2] // 2
  assert d2sd.METHOD.name == small_d2sd.drafter(target).method
