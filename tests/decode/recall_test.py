# SPDX-License-Identifier: MIT
"""Drafters that read the text know a cached prefix as if it were prefilled."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.cache import paged
from jspec.decode import prefill, recall, sampling
from jspec.decode import round as round_lib
from jspec.drafters import base, mixed, ngram
from jspec.testing import drafter_suite, toy

NUM_ROWS, LENGTH, ROW = 3, 13, 1


@pytest.fixture(scope='module')
def target():
  return toy.target()


@pytest.fixture(scope='module')
def members(target):
  return {'ngram': ngram.NGram(3), 'dflash': toy.drafter(target, taps=(0,))}


def text():
  return np.tile([3, 1, 4, 1, 5], 3)[:LENGTH].astype(np.int32)


@jax.jit
def admitted(drafter, state, tokens, num_cached, index):
  """A row whose prefix is found, before the rest of it is prefilled."""
  row = jnp.int32(ROW)
  request = sampling.stack([sampling.SamplingParams()])
  state = prefill.admit(
    drafter, state, row, tokens[-1], num_cached, request, jnp.full((2,), -1)
  )
  if isinstance(drafter, mixed.Mixed):
    chosen = mixed.choose(state.drafter, row, index)
    state = dataclasses.replace(state, drafter=chosen)
  return state, recall.recall(drafter, state, row, tokens, num_cached)


def begin(target, drafter):
  return round_lib.init_state(
    target,
    drafter,
    num_rows=NUM_ROWS,
    max_len=16,
    page_size=4,
    num_stop_ids=2,
  )


def rest(drafter, state, tokens, num_cached):
  """The draft once the tokens that were not found are taken in."""
  table = state.cache.table
  width = LENGTH - 1 - num_cached
  shape = NUM_ROWS, width
  counts = jnp.zeros((NUM_ROWS,), jnp.int32).at[ROW].set(width)
  own = drafter.commit(
    state.drafter,
    table,
    base.Committed(
      jnp.broadcast_to(tokens[num_cached:-1], shape),
      jnp.zeros((*shape, len(drafter.taps), 32)),
      counts,
      jnp.full((NUM_ROWS,), tokens[-1]),
    ),
  )
  table = paged.advance(table, counts, jnp.zeros((), bool))
  anchor = jnp.full((NUM_ROWS,), tokens[-1])
  draft = drafter_suite.propose(drafter, own, table, anchor, None, None)
  return draft.tokens[ROW, : int(draft.num_nodes[ROW])].tolist()


@pytest.mark.parametrize(
  'is_mixed', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_lookup_finds_what_lies_in_a_cached_prefix(target, members, is_mixed):
  drafter = mixed.Mixed(members) if is_mixed else members['ngram']
  state = begin(target, drafter)
  # The last token occurs early only, in what is found.
  tokens = jnp.asarray([3, 1, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 3], jnp.int32)
  got = {}
  for num_cached in (0, 8):
    before, after = admitted(
      drafter, state, tokens, jnp.int32(num_cached), jnp.int32(0)
    )
    got[num_cached] = rest(drafter, after, tokens, num_cached)
  assert got[0] == got[8] == [3, 1, 4, 6]
  assert rest(drafter, before, tokens, 8) == [3]  # Without being told.


def test_only_the_row_and_its_member_are_told(target, members):
  drafter = mixed.Mixed(members)
  state = begin(target, drafter)
  tokens = jnp.asarray(text())
  for index, is_told in ((0, True), (1, False), (-1, False)):
    before, after = admitted(
      drafter, state, tokens, jnp.int32(8), jnp.int32(index)
    )
    want = np.array(before.drafter.members[0])
    if is_told:
      want[ROW, :8] = text()[:8]
    np.testing.assert_array_equal(after.drafter.members[0], want)
    for a, b in zip(
      jax.tree.leaves(after.drafter.members[1]),
      jax.tree.leaves(before.drafter.members[1]),
      strict=True,
    ):
      np.testing.assert_array_equal(a, b)


def test_who_needs_no_telling_is_left_alone(target, members):
  for drafter in (None, members['dflash']):
    before, after = admitted(
      drafter,
      begin(target, drafter),
      jnp.asarray(text()),
      jnp.int32(8),
      jnp.int32(0),
    )
    for a, b in zip(
      jax.tree.leaves(after), jax.tree.leaves(before), strict=True
    ):
      np.testing.assert_array_equal(a, b)
