# SPDX-License-Identifier: MIT
"""EAGLE-2's tree against a plain loop over Python lists."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.trees import expand_rerank
from tests.trees import laws, shape

ANCHOR = 9
VOCAB = 4
KINDS = ['plain', 'ties', 'zeros', 'certain']


@functools.cache
def builder(num_nodes, width, num_steps, count, drafter):
  def run(log_probs):
    sizes = (width, num_steps) if drafter is laws.by_scratch_row else (width,)
    step, state = drafter(log_probs, *sizes, count)
    return expand_rerank.build(
      step,
      state,
      laws.root(log_probs, count),
      jnp.full((log_probs.shape[0],), ANCHOR),
      num_nodes=num_nodes,
      width=width,
      num_steps=num_steps,
    )[0]

  return jax.jit(run)


def draft_of(
  log_probs, *, num_nodes, width, num_steps, count, drafter=laws.by_slot
):
  return builder(num_nodes, width, num_steps, count, drafter)(log_probs)


def reference(log_probs, *, num_nodes, width, num_steps, count):
  """The paths of one row's draft, best first."""

  def best(paths, n):
    scores = {path: laws.path_log_prob(log_probs, path) for path in paths}
    ranked = sorted(paths, key=lambda path: -scores[path])  # Stable.
    return [path for path in ranked if scores[path] > -np.inf][:n]

  recorded = laws.best_children(log_probs, (), count)
  beam = best(recorded, width)
  for _ in range(num_steps):
    level = [
      child
      for path in beam
      for child in laws.best_children(log_probs, path, count)
    ]
    recorded += level
    beam = best(level, width)
  return [(), *best(recorded, num_nodes - 1)]


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize(
  'sizes',
  [
    {'num_nodes': 8, 'width': 3, 'num_steps': 3, 'count': 3},
    {'num_nodes': 30, 'width': 5, 'num_steps': 4, 'count': 2},
    {'num_nodes': 6, 'width': 2, 'num_steps': 1, 'count': 4},
    {'num_nodes': 4, 'width': 2, 'num_steps': 0, 'count': 4},
  ],
  ids=['narrow', 'wide', 'short', 'flat'],
)
def test_draft_equals_the_plain_loop(kind, sizes):
  log_probs = laws.table(np.random.default_rng(1), 5, VOCAB, 5, kind)
  draft = draft_of(log_probs, **sizes)
  shape.check(draft, ANCHOR)
  for row in range(5):
    assert shape.paths(draft, row) == reference(log_probs[row], **sizes)


def test_both_ways_of_remembering_give_the_same_draft():
  # Two words of scratch rows.
  sizes = {'num_nodes': 24, 'width': 9, 'num_steps': 4, 'count': 3}
  log_probs = laws.table(np.random.default_rng(2), 3, VOCAB, 5)
  gathered = draft_of(log_probs, **sizes)
  masked = draft_of(log_probs, **sizes, drafter=laws.by_scratch_row)
  for mine, other in zip(
    jax.tree.leaves(gathered), jax.tree.leaves(masked), strict=True
  ):
    np.testing.assert_array_equal(mine, other)


def test_confidence_is_the_probability_given_the_parent():
  log_probs = laws.table(np.random.default_rng(3), 2, VOCAB, 4)
  draft = draft_of(log_probs, num_nodes=9, width=3, num_steps=2, count=3)
  for row in range(2):
    for node, path in enumerate(shape.paths(draft, row)[1:], start=1):
      expected = laws.path_log_prob(log_probs[row], path)
      got = np.log(shape.survival(draft)[row, node])
      assert got == pytest.approx(expected, abs=1e-5)


def test_one_candidate_is_the_chain_and_one_node_plain_decoding():
  log_probs = laws.table(np.random.default_rng(4), 2, VOCAB, 4)
  draft = draft_of(log_probs, num_nodes=5, width=1, num_steps=3, count=1)
  np.testing.assert_array_equal(draft.parents, [np.arange(-1, 4)] * 2)
  for row in range(2):
    path = ()
    for _ in range(4):
      path = laws.best_children(log_probs[row], path, 1)[0]
    assert shape.paths(draft, row)[-1] == path
  draft = draft_of(log_probs, num_nodes=1, width=2, num_steps=3, count=2)
  assert draft.tokens.shape == (2, 1)


def test_beam_as_wide_as_the_level_finds_the_best_tree():
  """Nothing is out of sight, so no tree of as many nodes expects more."""
  log_probs = laws.table(np.random.default_rng(5), 2, 3, 3)
  draft = draft_of(log_probs, num_nodes=9, width=9, num_steps=2, count=3)
  narrow = draft_of(log_probs, num_nodes=9, width=1, num_steps=2, count=3)
  for row in range(2):
    paths = [()]
    for path in paths:
      if len(path) < 3:
        paths += laws.best_children(log_probs[row], path, 3)
    every = [laws.path_log_prob(log_probs[row], path) for path in paths[1:]]
    best = np.exp(np.sort(every)[::-1][:8]).sum()
    got = shape.survival(draft)[row, 1:].sum()
    assert got == pytest.approx(best, rel=1e-5)
    # Negative control: a beam of one does not.
    assert shape.survival(narrow)[row, 1:].sum() < best - 1e-4


def test_other_values_do_not_compile_again():
  def run(log_probs):
    step, state = laws.by_slot(log_probs, 3, 3)
    anchor = jnp.zeros((2,), jnp.int32)
    return expand_rerank.build(
      step,
      state,
      laws.root(log_probs, 3),
      anchor,
      num_nodes=9,
      width=3,
      num_steps=2,
    )

  traced = shape.Counted(run)
  jitted = jax.jit(traced)
  for seed in range(3):
    jitted(laws.table(np.random.default_rng(seed), 2, VOCAB, 4, KINDS[seed]))
  assert traced.count == 1
