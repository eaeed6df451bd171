# SPDX-License-Identifier: MIT
"""OPT-Tree: as deep as a level pays, and the best tree of what was seen."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.trees import opt_tree
from tests.trees import laws, shape

ANCHOR = 9
VOCAB = 4


@functools.cache
def builder(num_nodes, max_depth, count):
  def run(log_probs, threshold):
    inner, context = laws.by_slot(log_probs, max(num_nodes - 1, 1), count)

    def step(state, beam):
      context, found = inner(state[0], beam)
      return (context, state[1] + 1), found

    draft, state = opt_tree.build(
      step,
      (context, jnp.int32(0)),
      laws.root(log_probs, count),
      jnp.full((log_probs.shape[0],), ANCHOR),
      num_nodes=num_nodes,
      max_depth=max_depth,
      threshold=threshold,
    )
    return draft, state[1]

  return jax.jit(run)


def draft_of(log_probs, *, num_nodes, max_depth, threshold, count=VOCAB):
  """The draft, and how often the drafter ran."""
  return builder(num_nodes, max_depth, count)(log_probs, jnp.float32(threshold))


def reference(log_probs, *, num_nodes, max_depth, threshold):
  """The paths of one row's draft, best first, and its depth."""
  score = {}

  def best(paths):
    ranked = sorted(paths, key=lambda path: -score[path])  # Stable.
    return [p for p in ranked if score[p] > -np.inf][: num_nodes - 1]

  seen, beam, expected, depth = [], [()], 0.0, 0
  while depth < max_depth:
    level = []
    for path in beam:
      level += laws.best_children(log_probs, path, VOCAB)
    for path in level:
      score[path] = laws.path_log_prob(log_probs, path)
    beam = best(level)
    seen += beam
    depth += 1
    before = expected
    expected = np.exp([score[path] for path in best(seen)]).sum()
    if expected - before <= threshold:
      break
  return [(), *best(seen)], depth


@pytest.mark.parametrize('kind', ['plain', 'ties', 'zeros', 'certain'])
@pytest.mark.parametrize(
  'num_nodes, max_depth, threshold',
  [(9, 5, 0.5), (9, 5, 0.2), (20, 4, 0.0), (5, 1, 0.5), (2, 5, 0.3)],
)
def test_draft_equals_the_plain_loop(kind, num_nodes, max_depth, threshold):
  log_probs = laws.table(np.random.default_rng(1), 4, VOCAB, 5, kind)
  sizes = {'num_nodes': num_nodes, 'max_depth': max_depth}
  draft, _ = draft_of(log_probs, **sizes, threshold=threshold)
  shape.check(draft, ANCHOR)
  for row in range(4):
    paths, _ = reference(log_probs[row], **sizes, threshold=threshold)
    assert shape.paths(draft, row) == paths


def test_drafter_runs_only_while_some_row_gains():
  log_probs = laws.table(np.random.default_rng(2), 3, VOCAB, 5)
  for threshold in (0.9, 0.5, 0.3, -1.0):
    _, runs = draft_of(log_probs, num_nodes=6, max_depth=5, threshold=threshold)
    depths = [
      reference(row, num_nodes=6, max_depth=5, threshold=threshold)[1]
      for row in log_probs
    ]
    assert int(runs) == max(depths) - 1


def test_row_does_not_depend_on_its_neighbours():
  log_probs = laws.table(np.random.default_rng(3), 4, VOCAB, 5)
  log_probs[0] = np.log(1 / VOCAB)  # Stops at once; others go on.
  sizes = {'num_nodes': 9, 'max_depth': 5, 'threshold': 0.3}
  mixed, _ = draft_of(log_probs, **sizes)
  for row in range(4):
    same, _ = draft_of(np.repeat(log_probs[row : row + 1], 4, 0), **sizes)
    assert shape.paths(mixed, row) == shape.paths(same, 0)


def test_no_tree_as_large_and_deep_expects_more():
  log_probs = laws.table(np.random.default_rng(4), 3, 3, 4)
  draft, _ = draft_of(
    log_probs, num_nodes=8, max_depth=4, threshold=-1.0, count=3
  )
  for row in range(3):
    paths = [()]
    for path in paths:
      if len(path) < 4:
        paths += laws.best_children(log_probs[row], path, 3)
    every = [laws.path_log_prob(log_probs[row], path) for path in paths[1:]]
    best = np.exp(np.sort(every)[::-1][:7]).sum()
    assert shape.survival(draft)[row].sum() - 1 == pytest.approx(best, rel=1e-5)


def test_threshold_that_no_level_reaches_leaves_the_first_level():
  log_probs = laws.table(np.random.default_rng(5), 2, VOCAB, 5)
  draft, runs = draft_of(log_probs, num_nodes=9, max_depth=5, threshold=2.0)
  assert int(runs) == 0
  for row in range(2):
    assert max(map(len, shape.paths(draft, row))) == 1


def test_one_node_is_plain_decoding_and_one_draft_the_chain():
  log_probs = laws.table(np.random.default_rng(6), 2, VOCAB, 5, 'certain')
  draft, _ = draft_of(log_probs, num_nodes=1, max_depth=5, threshold=0.1)
  assert draft.tokens.shape == (2, 1)
  draft, _ = draft_of(
    log_probs, num_nodes=5, max_depth=4, threshold=-1.0, count=1
  )
  np.testing.assert_array_equal(draft.parents, [np.arange(-1, 4)] * 2)


def test_other_values_do_not_compile_again():
  def run(log_probs, threshold):
    step, state = laws.by_slot(log_probs, 5, 3)
    return opt_tree.build(
      step,
      state,
      laws.root(log_probs, 3),
      jnp.zeros((2,), jnp.int32),
      num_nodes=6,
      max_depth=4,
      threshold=threshold,
    )

  traced = shape.Counted(run)
  jitted = jax.jit(traced)
  for seed in range(3):
    log_probs = laws.table(np.random.default_rng(seed), 2, VOCAB, 4)
    jitted(log_probs, jnp.float32(0.1 * seed))
  assert traced.count == 1
