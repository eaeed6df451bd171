# SPDX-License-Identifier: MIT
"""Trees as parents, depths and packed ancestor words."""

import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree


def random_parents(num_rows, num_nodes, seed=0):
  rng = np.random.default_rng(seed)
  parents = np.full((num_rows, num_nodes), -1, np.int32)
  for node in range(1, num_nodes):
    parents[:, node] = rng.integers(0, node, num_rows)
  return parents


def ancestors(parents, node):
  """The node and all above it, followed one by one."""
  seen = {node}
  while parents[node] >= 0:
    node = parents[node]
    seen.add(node)
  return seen


@pytest.mark.parametrize('num_nodes', [1, 5, 32, 33, 70])
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


@pytest.mark.parametrize('num_nodes', [1, 8, 40])
def test_constant_words_equal_those_of_the_tree_they_stand_for(num_nodes):
  chain = tree.ancestor_words(tree.chain_parents(2, num_nodes))
  np.testing.assert_array_equal(tree.chain_words(2, num_nodes), chain)
  block = np.asarray(tree.block_words(2, num_nodes))
  for j in range(num_nodes):
    assert np.all(block[:, :, j // 32] >> (j % 32) & 1)
  num_bits = np.unpackbits(block.view(np.uint8)).sum()
  assert num_bits == 2 * num_nodes * num_nodes
