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
import numpy as np

from jspec import errors
from jspec.typing import Array, Float, Int, UInt32

WORD_BITS = 32
MAX_NODES = 128  # The most nodes of a row that a round verifies.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SparseLaw:
  """The laws draft tokens were drawn from, exactly as sampled, per parent.

  Attributes:
    ids: `ids[b, t]` are the tokens with non-zero probability in the law that
      the children of node t were drawn from. Unused where there are none.
    probs: their probabilities, which sum to 1. Padding entries hold 0.
    draws: how siblings were drawn, in node order: 'independent' (each from this
      law) or 'without_replacement' (each from this law without the tokens of
      the siblings before, renormalised). A chain has no siblings.
  """

  ids: Int[Array, 'B T Q']
  probs: Float[Array, 'B T Q']
  draws: str = dataclasses.field(metadata={'static': True})


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


def check(draft: Draft) -> None:
  """Refuses a draft that is no tree; for drafts that are known, not traced.

  Raises:
    UserError: unequal shapes, too many nodes, a parent that comes after its
      child, a cycle, a count of nodes that cannot be.
  """
  tokens, parents = np.asarray(draft.tokens), np.asarray(draft.parents)
  counts = np.asarray(draft.num_nodes)
  for name in ('parents', 'confidence'):
    shape = np.shape(getattr(draft, name))
    if shape != tokens.shape:
      raise errors.UserError(
        f'draft.{name} has shape {shape} but draft.tokens {tokens.shape}; give'
        ' one entry for every node'
      )
  num_nodes = tokens.shape[1]
  check_size(num_nodes)
  if counts.shape != tokens.shape[:1] or np.any(
    (counts < 1) | (counts > num_nodes)
  ):
    raise errors.UserError(
      f'draft.num_nodes is {counts.tolist()}; give every row from 1 (the anchor'
      f' alone) to {num_nodes} nodes'
    )
  is_bad = (parents >= np.arange(num_nodes)) | (parents < 0)
  is_bad[:, 0] = parents[:, 0] != -1
  if np.any(is_bad):
    row, node = map(int, np.argwhere(is_bad)[0])
    parent = int(parents[row, node])
    mend = (
      'the anchor has parent -1'
      if node == 0
      else 'a parent must come before its child (0 to node - 1); else the nodes'
      ' form a cycle or no tree: order them by depth'
    )
    raise errors.UserError(
      f'row {row} of the draft: node {node} has parent {parent}; {mend}'
    )


def check_size(num_nodes: int) -> None:
  """Refuses more nodes in a row than the largest round.

  Raises:
    UserError: names the number and the limit.
  """
  if num_nodes > MAX_NODES:
    raise errors.UserError(
      f'a draft of {num_nodes} nodes (the anchor included) exceeds the largest'
      f' round of {MAX_NODES}; propose fewer draft tokens'
    )


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
  words = ancestor_words(parents)
  return jnp.sum(jax.lax.population_count(words), -1).astype(jnp.int32) - 1


def survival(draft: Draft) -> Float[Array, 'B T']:
  """Probability that each node is accepted: confidence along its path.

  1 for the anchor, 0 for padding. The sum over the draft nodes is how many
  drafts the drafter expects to be accepted.
  """
  parents, chance = draft.parents, draft.confidence
  for _ in range((parents.shape[1] - 1).bit_length()):
    is_real = parents >= 0
    up = jnp.maximum(parents, 0)
    above = jnp.take_along_axis(chance, up, axis=1)
    chance = jnp.where(is_real, chance * above, chance)
    parents = jnp.where(is_real, jnp.take_along_axis(parents, up, axis=1), -1)
  is_live = jnp.arange(chance.shape[1]) < draft.num_nodes[:, None]
  return jnp.where(is_live, chance, 0.0)


def ancestor_words(parents: Int[Array, 'B T']) -> UInt32[Array, 'B T W']:
  """Packs the ancestors of every node, itself included, 32 nodes to a word.

  Pointers double: after i steps a node knows its nearest 2**i ancestors and
  points at the next one, so 128 nodes take 7 steps.
  """
  rows, num_nodes = parents.shape
  num_words = -(-num_nodes // WORD_BITS)
  node = jnp.arange(num_nodes)
  own = (node[:, None] // WORD_BITS == jnp.arange(num_words)).astype(jnp.uint32)
  own = own << (node % WORD_BITS).astype(jnp.uint32)[:, None]
  words = jnp.broadcast_to(own, (rows, num_nodes, num_words))
  for _ in range((num_nodes - 1).bit_length()):
    is_real = parents >= 0
    up = jnp.maximum(parents, 0)
    inherited = jnp.take_along_axis(words, up[:, :, None], axis=1)
    words |= jnp.where(is_real[:, :, None], inherited, jnp.uint32(0))
    parents = jnp.where(is_real, jnp.take_along_axis(parents, up, axis=1), -1)
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
