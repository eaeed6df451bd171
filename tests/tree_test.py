# SPDX-License-Identifier: MIT
"""Trees as parents, depths and packed ancestor words."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import errors, tree


def random_parents(num_rows, num_nodes, seed=0):
  rng = np.random.default_rng(seed)
  parents = np.full((num_rows, num_nodes), -1, np.int32)
  for node in range(1, num_nodes):
    parents[:, node] = rng.integers(0, node, num_rows)
  return parents


def draft(**changes):
  """A good draft of two rows and four nodes, with some of it changed."""
  good = dict(
    tokens=np.zeros((2, 4), np.int32),
    parents=np.array([[-1, 0, 0, 1], [-1, 0, 1, 2]], np.int32),
    num_nodes=np.array([4, 1], np.int32),
    confidence=np.ones((2, 4), np.float32),
  )
  arrays = {name: jnp.asarray(x) for name, x in (good | changes).items()}
  return tree.Draft(**arrays)


def ancestors(parents, node):
  """The node and all above it, followed one by one."""
  seen = {node}
  while parents[node] >= 0:
    node = parents[node]
    seen.add(node)
  return seen


@pytest.mark.few(3)
@pytest.mark.parametrize('num_nodes', [1, 2, 5, 32, 33, 70, 128])
def test_words_and_depths_follow_the_parents(num_nodes):
  parents = random_parents(3, num_nodes)
  words = np.asarray(tree.ancestor_words(jnp.asarray(parents)))
  depths = np.asarray(tree.depths(jnp.asarray(parents)))
  for row in range(3):
    for node in range(num_nodes):
      expected = ancestors(parents[row], node)
      bits = {
        j for j in range(num_nodes) if words[row, node, j // 32] >> (j % 32) & 1
      }
      assert bits == expected
      assert depths[row, node] == len(expected) - 1


@pytest.mark.few(1)
@pytest.mark.parametrize('num_nodes', [1, 8, 40])
def test_constant_words_equal_those_of_the_tree_they_stand_for(num_nodes):
  chain = tree.ancestor_words(tree.chain_parents(2, num_nodes))
  np.testing.assert_array_equal(tree.chain_words(2, num_nodes), chain)
  block = np.asarray(tree.block_words(2, num_nodes))
  for j in range(num_nodes):
    assert np.all(block[:, :, j // 32] >> (j % 32) & 1)
  num_bits = np.unpackbits(block.view(np.uint8)).sum()
  assert num_bits == 2 * num_nodes * num_nodes


def test_a_chain_of_128_nodes_is_deepest_at_its_end():
  depths = tree.depths(tree.chain_parents(2, 128))
  np.testing.assert_array_equal(depths, np.tile(np.arange(128), (2, 1)))


def test_a_good_draft_passes():
  tree.check(draft())


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (
      dict(parents=np.array([[-1, 0, 3, 1], [-1, 0, 1, 2]])),
      'row 0 of the draft: node 2 has parent 3; a parent must come before',
    ),
    (
      dict(parents=np.array([[-1, 0, 0, 1], [-1, 2, 1, 2]])),
      'row 1 of the draft: node 1 has parent 2; .* cycle',
    ),
    (
      dict(parents=np.array([[-1, 0, 0, 1], [-1, 0, 2, 2]])),
      'row 1 of the draft: node 2 has parent 2',
    ),
    (
      dict(parents=np.array([[-1, -1, 0, 1], [-1, 0, 1, 2]])),
      'row 0 of the draft: node 1 has parent -1',
    ),
    (
      dict(parents=np.array([[0, 0, 0, 1], [-1, 0, 1, 2]])),
      'the anchor has parent -1',
    ),
    (dict(num_nodes=np.array([5, 1])), 'from 1 .* to 4 nodes'),
    (dict(num_nodes=np.array([4, 0])), r'num_nodes is \[4, 0\]'),
  ],
)
def test_a_draft_that_is_no_tree_is_refused(changes, message):
  with pytest.raises(errors.UserError, match=message):
    tree.check(draft(**changes))


def test_more_nodes_than_the_largest_round_are_refused():
  with pytest.raises(errors.UserError, match='129 nodes .* of 128; propose'):
    tree.check_size(129)


def test_survival_is_the_product_of_confidence_along_the_path():
  rng = np.random.default_rng(1)
  parents = random_parents(3, 37)
  confidence = rng.uniform(0.3, 1, (3, 37)).astype(np.float32)
  confidence[:, 0] = 1
  counts = np.array([37, 20, 1])
  got = tree.survival(
    draft(
      tokens=np.zeros((3, 37), np.int32),
      parents=parents,
      num_nodes=counts,
      confidence=confidence,
    )
  )
  for row in range(3):
    for node in range(37):
      path = list(ancestors(parents[row], node))
      want = confidence[row, path].prod() if node < counts[row] else 0
      np.testing.assert_allclose(got[row, node], want, rtol=1e-5)
