# SPDX-License-Identifier: MIT
"""`Draft`: what a drafter proposes, and the arithmetic of its tree.

A draft is a tree of nodes. Node 0 is the anchor (the last committed token, not
yet run through the target); node i > 0 is a draft token whose parent has a
smaller index. A chain is the tree with parent i - 1:

  tokens   anchor  the  cat  sat
  parents      -1    0    1    2

Verification needs, for every node, the set of its ancestors and itself, packed
32 nodes to a word: bit j of word w is node 32 * w + j.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int, UInt32

WORD_BITS = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseLaw:
  """The law each node's token was drawn from, exactly as sampled.

  `ids[b, t]` are the token ids with non-zero probability for node t and
  `probs[b, t]` their probabilities (they sum to 1). Padding entries hold
  probability 0. Entry 0 (the anchor) is unused.
  """

  ids: Int[Array, 'B T Q']
  probs: Float[Array, 'B T Q']


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Draft:
  """A tree of draft tokens for every row.

  Attributes:
    tokens: node 0 is the anchor.
    parents: index of each node's parent, always smaller; -1 for the anchor.
    num_nodes: live nodes of a row, anchor included (1 means no drafts). Nodes
      from there on are padding: scored, never accepted, never counted.
    confidence: estimated probability that the node is accepted given that its
      parent was; 1 for the anchor.
    q: None when tokens are a function of the committed prefix (rule R1), else
      the law they were sampled from (rule R2).
  """

  tokens: Int[Array, 'B T']
  parents: Int[Array, 'B T']
  num_nodes: Int[Array, 'B']
  confidence: Float[Array, 'B T']
  q: SparseLaw | None = None


def chain_parents(num_rows: int, num_nodes: int) -> Int[Array, 'B T']:
  """Parents of a chain: -1, 0, 1, ... in every row."""
  parents = jnp.arange(-1, num_nodes - 1, dtype=jnp.int32)
  return jnp.broadcast_to(parents, (num_rows, num_nodes))


def plain(anchor: Int[Array, 'B']) -> Draft:
  """The draft of plain decoding: the anchor alone."""
  rows = anchor.shape[0]
  return Draft(
    tokens=anchor[:, None],
    parents=chain_parents(rows, 1),
    num_nodes=jnp.ones((rows,), jnp.int32),
    confidence=jnp.ones((rows, 1), jnp.float32),
  )


def depths(parents: Int[Array, 'B T']) -> Int[Array, 'B T']:
  """Distance of every node from the anchor.

  parents -1 0 1 1  ->  depths 0 1 2 2
  """
  num_nodes = parents.shape[1]
  depth = jnp.zeros_like(parents)
  for node in range(1, num_nodes):
    parent = parents[:, node]
    depth_of_parent = jnp.take_along_axis(depth, parent[:, None], axis=1)[:, 0]
    depth = depth.at[:, node].set(depth_of_parent + 1)
  return depth


def ancestor_words(parents: Int[Array, 'B T']) -> UInt32[Array, 'B T W']:
  """Packs the ancestors of every node, itself included, 32 nodes to a word."""
  rows, num_nodes = parents.shape
  num_words = -(-num_nodes // WORD_BITS)
  words = jnp.zeros((rows, num_nodes, num_words), jnp.uint32)
  for node in range(num_nodes):
    own = jnp.zeros((num_words,), jnp.uint32)
    own = own.at[node // WORD_BITS].set(jnp.uint32(1 << (node % WORD_BITS)))
    if node == 0:
      inherited = jnp.zeros((rows, num_words), jnp.uint32)
    else:
      inherited = words[jnp.arange(rows), parents[:, node]]
    words = words.at[:, node].set(inherited | own)
  return words


def chain_words(num_rows: int, num_nodes: int) -> UInt32[Array, 'B T W']:
  """Ancestor words of a chain, as a constant: node t sees nodes 0..t."""
  return _constant_words(num_rows, num_nodes, causal=True)


def block_words(num_rows: int, num_nodes: int) -> UInt32[Array, 'B T W']:
  """Words of a bidirectional block: every node sees every node."""
  return _constant_words(num_rows, num_nodes, causal=False)


def _constant_words(num_rows, num_nodes, *, causal):
  num_words = -(-num_nodes // WORD_BITS)
  node = jnp.arange(num_nodes)[:, None, None]
  word = jnp.arange(num_words)[None, :, None]
  bit = jnp.arange(WORD_BITS)[None, None, :]
  other = word * WORD_BITS + bit
  seen = (other <= node) if causal else (other < num_nodes + 0 * node)
  packed = jnp.sum(
    jnp.where(seen, jnp.uint32(1) << bit.astype(jnp.uint32), jnp.uint32(0)),
    axis=-1,
    dtype=jnp.uint32,
  )
  return jnp.broadcast_to(packed, (num_rows, num_nodes, num_words))
