# SPDX-License-Identifier: MIT
"""Sequoia's programme against all trees, and against the heap."""

import functools
import heapq

import numpy as np
import pytest

from jspec import errors
from jspec.trees import sequoia, topology


@functools.cache
def trees(size, depth, width):
  """All ordered trees of exactly `size` nodes, as tuples of subtrees."""
  return list(forests(size - 1, depth, width))


@functools.cache
def forests(size, depth, width):
  if size == 0:
    return [()]
  if depth == 0 or width == 0:
    return []
  return [
    (first, *rest)
    for taken in range(1, size + 1)
    for first in trees(taken, depth - 1, forests.full)
    for rest in forests(size - taken, depth, width - 1)
  ]


def value(shape, p):
  return 1 + sum(p[j] * value(child, p) for j, child in enumerate(shape))


def random_acceptance(rng, width, *, falls=True):
  p = rng.dirichlet(np.ones(width + 1))[:width]
  return np.sort(p)[::-1] if falls else p


@pytest.mark.parametrize('falls', [True, False])
def test_value_is_the_best_of_all_trees(falls):
  rng = np.random.default_rng(0)
  width = forests.full = 3
  for _ in range(5):
    p = random_acceptance(rng, width, falls=falls)
    table = sequoia.expected_tokens(p, 7, 3)
    for depth in range(4):
      best = 0.0
      for size in range(1, 8):
        values = [value(shape, p) for shape in trees(size, depth, width)]
        best = max([best, *values])
        assert table[depth, size - 1] == pytest.approx(best, abs=1e-12)
        tree = sequoia.build(p, size, depth)
        assert 1 + tree.expected_accepted() == pytest.approx(best, abs=1e-12)
        assert tree.num_nodes <= size and tree.depth <= depth


def heap_value(p, size, depth):
  """Pops the best path product; pushes its next sibling and first child."""
  queue, total, taken = [(-p[0], 1.0, 0, 1)], 1.0, 1
  while queue and taken < size:
    minus, above, rank, level = heapq.heappop(queue)
    total, taken = total - minus, taken + 1
    if rank + 1 < len(p):
      heapq.heappush(queue, (-above * p[rank + 1], above, rank + 1, level))
    if level < depth:
      heapq.heappush(queue, (minus * p[0], -minus, 0, level + 1))
  return total


def test_value_equals_the_heap_where_acceptance_falls():
  rng = np.random.default_rng(1)
  for _ in range(20):
    p = random_acceptance(rng, rng.integers(1, 6))
    table = sequoia.expected_tokens(p, 24, 4)
    for depth in range(1, 5):
      for size in range(1, 25):
        expected = heap_value(p, size, depth)
        assert table[depth, size - 1] == pytest.approx(expected, abs=1e-12)


def test_heap_falls_short_where_a_later_child_is_better():
  """Negative control of the comparison above: then only the programme holds."""
  p = [0.05, 0.0, 0.9]
  assert sequoia.expected_tokens(p, 4, 3)[3, 3] > heap_value(p, 4, 3) + 0.5


def test_nodes_are_in_order_of_survival_and_prefixes_are_best_trees():
  rng = np.random.default_rng(2)
  for _ in range(10):
    p = random_acceptance(rng, 4)
    tree = sequoia.build(p, 30, 5)
    assert np.all(np.diff(tree.survival()) <= 1e-12)
    expected = sequoia.expected_tokens(p, 30, 5)[5]
    np.testing.assert_allclose(
      np.cumsum(tree.survival()), expected[: tree.num_nodes], atol=1e-12
    )


def test_rank_one_alone_is_the_chain_and_one_node_plain_decoding():
  tree = sequoia.build([0.7], 9, 5)
  assert tree.parents == (-1, 0, 1, 2, 3, 4)
  assert sequoia.build([0.7, 0.2], 1, 5).parents == (-1,)
  assert sequoia.build([0.7, 0.2], 5, 0).parents == (-1,)


def test_children_without_chance_are_not_nodes():
  tree = sequoia.build([0.5, 0.0, 0.0], 9, 3)
  assert tree.parents == (-1, 0, 1, 2)


@pytest.mark.parametrize('seed', range(4))
def test_choice_is_the_fastest_of_all_sizes_and_depths(seed):
  rng = np.random.default_rng(seed)
  p = random_acceptance(rng, 3)
  draft = np.cumsum(rng.random(6)) * 0.1
  verify = np.sort(rng.random(12)) + 0.2
  chosen = sequoia.choose(p, draft, verify)
  rate = {}
  for depth in range(6):
    for size in range(1, 13):
      tokens = 1 + sequoia.build(p, size, depth).expected_accepted()
      rate[size, depth] = tokens / (draft[depth] + verify[size - 1])
  best = max(rate.values())
  # What was chosen may use less than it was granted, never cost more.
  mine = (1 + chosen.expected_accepted()) / (
    draft[chosen.depth] + verify[chosen.num_nodes - 1]
  )
  assert mine == pytest.approx(best, rel=1e-12)


def test_choice_is_plain_decoding_where_nodes_are_dear():
  assert sequoia.choose([0.5], [0, 1, 2], [1, 2, 3]).num_nodes == 1
  assert sequoia.choose([0.5], [0, 0, 0], [1, 1, 1]).num_nodes == 3


@pytest.mark.parametrize(
  'arguments, word',
  [
    (([0.9, 0.3], 4, 2), 'sum to at most 1'),
    (([-0.1], 4, 2), 'at least 0'),
    (([float('nan')], 4, 2), 'at least 0'),
    (([], 4, 2), 'by rank'),
    (([0.5], 0, 2), 'num_nodes=0'),
    (([0.5], 3, -1), 'depth=-1'),
  ],
)
def test_bad_input_is_named(arguments, word):
  with pytest.raises(errors.UserError, match=word):
    sequoia.build(*arguments)


@pytest.mark.parametrize(
  'parents, ranks, word',
  [
    ((-1, 1, 0), (0, 0, 0), 'node 1 has parent 1'),
    ((-1, 0, 0), (0, 0, 2), 'expected 1'),
    ((-1, 0), (0,), 'one entry'),
    ((), (), 'anchor'),
  ],
)
def test_shape_that_is_no_tree_is_refused(parents, ranks, word):
  with pytest.raises(errors.UserError, match=word):
    topology.Topology(parents, ranks, (1.0,) * len(parents))
