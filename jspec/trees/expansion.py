# SPDX-License-Identifier: MIT
"""Growing a tree level by level with a drafter that is run on its nodes.

A builder calls the drafter through one function,

  state, candidates = step(state, beam)

once a level, on `width` nodes a row (the beam). State is the drafter's own
pytree of fixed shapes: hidden states by beam slot, scratch keys and values. It
goes in and comes out; nobody else looks inside. What each node comes from is
said twice, because drafters remember in two ways:

  parents    slot of the parent in the beam before: gather what is kept by slot
             (EAGLE's and MTP's hidden state, a draft LM's reordered cache)
  ancestors  which scratch rows a node sees, when the rows of every beam stay
             where they were written: node (level, slot) in row
             level * width + slot; 32 rows a word, a node sees itself

The law behind the anchor is known before (the call that took in the accepted
tokens gives it), so the first beam lies one token behind the anchor, and its
parents are 0: before the first step, slot 0 is the anchor.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jspec import tree
from jspec.trees import candidates, select
from jspec.typing import Array, Bool, Float, Int, PyTree, UInt32


class Beam(NamedTuple):
  """Nodes of one level that the drafter is to be run on.

  Attributes:
    tokens: what to feed, at position anchor + 1 + level.
    parents: slot of each one's parent in the beam before; 0 at level 0.
    ancestors: packed scratch rows of the node's ancestors and of itself.
    is_live: the others are fill, whatever is returned for them.
    level: 0 for the first beam.
  """

  tokens: Int[Array, 'B beam']
  parents: Int[Array, 'B beam']
  ancestors: UInt32[Array, 'B beam W']
  is_live: Bool[Array, 'B beam']
  level: Int[Array, '']


# Candidates [B, beam, Q] for the token behind every node of the beam.
Step = Callable[[PyTree, Beam], tuple[PyTree, candidates.Candidates]]


class Frontier(NamedTuple):
  """A beam with what the builder keeps beside it.

  Attributes:
    beam: see above.
    scores: of the beam's nodes.
    index: of the beam's nodes in the pool.
  """

  beam: Beam
  scores: Float[Array, 'B beam']
  index: Int[Array, 'B beam']


def behind_anchor(root: candidates.Candidates) -> select.Pool:
  """The nodes of depth 1, which open the pool."""
  log_probs = candidates.clean(root.log_probs)
  nobody = jnp.full(root.ids.shape, -1, jnp.int32)
  return select.Pool(root.ids, nobody, log_probs, log_probs)


def children(frontier: Frontier, found: candidates.Candidates) -> select.Pool:
  """All children of a beam, [B, beam * Q], slot by slot."""
  rows = found.ids.shape[0]
  log_probs = candidates.clean(found.log_probs)
  scores = select.path_score(frontier.scores[:, :, None], log_probs)
  parents = jnp.broadcast_to(frontier.index[:, :, None], found.ids.shape)
  return select.Pool(
    *(x.reshape(rows, -1) for x in (found.ids, parents, log_probs, scores))
  )


def first_frontier(level: select.Pool, width: int, num_levels: int) -> Frontier:
  """The best `width` nodes of depth 1; `num_levels` beams will be made."""
  num_words = -(-num_levels * width // tree.WORD_BITS)
  nothing = jnp.zeros((level.scores.shape[0], width, num_words), jnp.uint32)
  return _best(level, width, jnp.int32(0), jnp.int32(0), nothing)


def next_frontier(
  before: Frontier, level: select.Pool, first: Int[Array, '']
) -> Frontier:
  """The best nodes of a level made by `children`, whose pool begins at `first`.

  The beam keeps its width.
  """
  beam = before.beam
  return _best(
    level, beam.tokens.shape[1], first, beam.level + 1, beam.ancestors
  )


def _best(level, width, first, number, ancestors) -> Frontier:
  """Beam `number`; `ancestors` are those of the beam before."""
  scores, chosen = select.top(level.scores, width)
  num_ranks = level.scores.shape[1] // ancestors.shape[1]
  parents = jnp.where(number > 0, chosen // max(num_ranks, 1), 0)
  row = number * width + jnp.arange(width, dtype=jnp.int32)
  word = jnp.arange(ancestors.shape[2], dtype=jnp.int32)
  bit = jnp.uint32(1) << (row % tree.WORD_BITS).astype(jnp.uint32)
  own = jnp.where(row[:, None] // tree.WORD_BITS == word, bit[:, None], 0)
  inherited = jnp.take_along_axis(ancestors, parents[:, :, None], axis=1)
  return Frontier(
    beam=Beam(
      tokens=jnp.take_along_axis(level.tokens, chosen, axis=1),
      parents=parents,
      ancestors=inherited | own.astype(jnp.uint32),
      is_live=scores > select.DEAD,
      level=number,
    ),
    scores=scores,
    index=first + chosen,
  )
