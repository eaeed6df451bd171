# SPDX-License-Identifier: MIT
"""A round scores what is kept, packed or not, and decides the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import round as round_lib
from jspec.decode import sampling, scoring
from jspec.testing import toy

ROWS, NODES, CAPACITY = 4, 6, 40


@pytest.fixture(scope='module')
def target():
  return toy.target()


def problem(target, seed=0, temperatures=(0.0, 0.0, 0.0, 0.0)):
  """Rows in the middle of an answer and trees, some of them right.

  The last row is finished: whatever it has, it must cost nothing.
  """
  rng = np.random.default_rng(seed)
  state = round_lib.init_state(
    target, None, num_rows=ROWS, max_len=CAPACITY, page_size=8, num_stop_ids=1
  )
  keys = jax.random.split(jax.random.key(seed), 2)
  pages = state.cache.pages
  pages = dataclasses.replace(
    pages,
    k=jax.random.normal(keys[0], pages.k.shape),
    v=jax.random.normal(keys[1], pages.v.shape),
  )
  table = dataclasses.replace(
    state.cache.table, lengths=jnp.asarray([0, 17, 5, 30], jnp.int32)
  )
  parents = [[-1, *(int(rng.integers(0, i)) for i in range(1, NODES))]] * ROWS
  tokens = rng.integers(0, toy.VOCAB_SIZE, (ROWS, NODES)).astype(np.int32)
  state = dataclasses.replace(
    state,
    cache=dataclasses.replace(state.cache, pages=pages, table=table),
    anchor=jnp.asarray(tokens[:, 0]),
    remaining=jnp.asarray([9, 9, 9, 0], jnp.int32),
    sampling=sampling.stack(
      [
        sampling.SamplingParams(temperature=t, seed=i)
        for i, t in enumerate(temperatures)
      ]
    ),
  )
  draft = tree.Draft(
    tokens=jnp.asarray(tokens),
    parents=jnp.asarray(parents, jnp.int32),
    num_nodes=jnp.full((ROWS,), NODES, jnp.int32),
    confidence=jnp.ones((ROWS, NODES)),
  )
  return state, _with_right_tokens(target, state, draft)


def _with_right_tokens(target, state, draft):
  """Puts at the first child of each node what the target would draw there."""
  for _ in range(NODES):
    accepted = score(target, state, draft, scoring.ends(ROWS, NODES)).accepted
    tokens = np.array(draft.tokens)
    for row in range(ROWS - 1):
      node = int(accepted.path[row, accepted.num_accepted[row]])
      children = np.flatnonzero(np.asarray(draft.parents[row]) == node)
      if children.size:
        tokens[row, children[0]] = accepted.tokens[
          row, accepted.num_accepted[row]
        ]
    draft = dataclasses.replace(draft, tokens=jnp.asarray(tokens))
  return draft


@jax.jit
def _score_all(target, state, draft):
  return scoring.score_and_accept(
    target,
    state,
    draft,
    taps=(0, 2),
    rule='walk',
    sizes=scoring.ends(ROWS, NODES),
  )


def score(target, state, draft, sizes, rule='walk'):
  if sizes == scoring.ends(ROWS, NODES):
    return _score_all(target, state, draft)
  run = jax.jit(
    lambda target, state, draft: scoring.score_and_accept(
      target, state, draft, taps=(0, 2), rule=rule, sizes=sizes
    )
  )
  return run(target, state, draft)


@pytest.mark.slow
@pytest.mark.parametrize('temperature', [0.0, 0.9])
@pytest.mark.parametrize(
  'counts', [(6, 1, 3, 6), (1, 1, 3, 6), (2, 6, 6, 1), (1, 4, 1, 1)]
)
def test_packed_nodes_score_and_accept_as_whole_rows_do(
  target, counts, temperature
):
  state, draft = problem(target, temperatures=(0.0, *[temperature] * 3))
  draft = dataclasses.replace(draft, num_nodes=jnp.asarray(counts, jnp.int32))
  want, want_accepted, *_ = score(
    target, state, draft, scoring.ends(ROWS, NODES)
  )
  live = sum(counts[:-1])  # The last row is finished.
  # One budget, so that there is no other branch to fall into.
  for size in (live, live + 3):
    got, accepted, *_ = score(target, state, draft, (size,))
    for row, count in enumerate(counts[:-1]):
      for name in ('hidden', 'taps', 'k', 'v'):
        axis = 1 if name in 'kv' else 0
        a, b = (
          np.asarray(jnp.take(getattr(x, name), row, axis=axis))
          for x in (got, want)
        )
        a, b = (x[:, :count] if name in 'kv' else x[:count] for x in (a, b))
        np.testing.assert_allclose(a, b, atol=2e-5)
      for name in ('path', 'tokens', 'num_accepted'):
        a, b = (getattr(x, name)[row] for x in (accepted, want_accepted))
        np.testing.assert_array_equal(a, b)
  assert int(want_accepted.num_accepted[:-1].sum()) > 1


@pytest.mark.slow
def test_rules_for_sampled_drafts_get_their_logits_row_by_row(target):
  state, draft = problem(target, temperatures=(0.7, 0.9, 1.1, 1.0))
  ids = jnp.arange(4, dtype=jnp.int32) + draft.tokens[..., None] * 0
  law = tree.SparseLaw(
    ids, jnp.full(ids.shape, 0.25), draws='without_replacement'
  )
  counts = jnp.asarray((6, 2, 3, 1), jnp.int32)
  draft = dataclasses.replace(
    draft, tokens=draft.tokens % 4, num_nodes=counts, q=law
  )
  ends = scoring.ends(ROWS, NODES)
  results = []
  for sizes in (ends, (14,)):
    run = jax.jit(
      lambda target, state, draft, sizes=sizes: (
        scoring.score_and_accept(
          target, state, draft, taps=(), rule='recursive', sizes=sizes
        ).accepted
      )
    )
    results.append(run(target, state, draft))
  for name in ('path', 'tokens', 'num_accepted'):
    a, b = (np.asarray(getattr(x, name))[:-1] for x in results)
    np.testing.assert_array_equal(a, b)


def test_the_smallest_budget_that_holds_the_live_rows_is_taken(target):
  """Seen in what a branch too small or too large would give."""
  sizes = (ROWS, 9, 14, ROWS * NODES)
  state, draft = problem(target)
  taken = []

  class Spy:
    def __getattr__(self, name):
      return getattr(target, name)

    def score(self, tokens, *args):
      scored = target.score(tokens, *args)
      number = jnp.float32(tokens.size)
      return dataclasses.replace(scored, taps=scored.taps * 0 + number)

  run = jax.jit(
    lambda state, draft: scoring.score_and_accept(
      Spy(), state, draft, taps=(0,), rule='walk', sizes=sizes
    ).scored.taps[0, 0, 0, 0]
  )
  for counts in ((1, 1, 1, 6), (2, 1, 1, 6), (3, 3, 3, 1), (6, 3, 3, 1)):
    cut = dataclasses.replace(draft, num_nodes=jnp.asarray(counts, jnp.int32))
    taken.append(int(run(state, cut)))
  assert taken == [ROWS, 9, 9, 14]
  assert int(run(state, draft)) == ROWS * NODES


@pytest.mark.parametrize(
  ('rows', 'nodes', 'most', 'want'),
  [
    (1, 4, 6, (1, 4)),
    (4, 4, 6, (4, 10, 16)),
    (1, 8, 6, (1, 5, 8)),
    (64, 8, 6, (64, 97, 147, 223, 338, 512)),
    (64, 8, 3, (64, 181, 512)),
    (16, 1, 6, (16,)),
    (3, 4, 2, (3, 12)),
  ],
)
def test_budgets_lie_a_factor_apart(rows, nodes, most, want):
  assert scoring.budgets(rows, nodes, most) == want


def test_a_packing_goes_there_and_back():
  rng = np.random.default_rng(0)
  x = jnp.asarray(rng.normal(size=(3, 4, 2)), jnp.float32)
  counts = jnp.asarray([2, 0, 3], jnp.int32)
  packing = packing_lib.pack_rows(counts, 7, 4)
  tokens = packing.to_tokens(x)
  np.testing.assert_array_equal(tokens[:2], x[0, :2])
  np.testing.assert_array_equal(tokens[2:5], x[2, :3])
  np.testing.assert_array_equal(tokens[5:], 0)
  rows = packing.to_rows(tokens)
  np.testing.assert_array_equal(rows[2, :3], x[2, :3])
  node = jnp.asarray([1, 0, 2])
  np.testing.assert_array_equal(packing.take(tokens, node)[2], x[2, 2])
