# SPDX-License-Identifier: MIT
"""From a pool of recorded nodes to a draft: the best ones, renumbered.

A node's score is the logarithm of its path probability,

  score(child) = min(score(parent), score(parent) + log q(child | parent)),

and nodes are ranked by (score, order of creation). A parent never scores below
its child and is created before it, so it ranks first even where log q is 0 or
rounds away: the best n nodes are closed under ancestors for every n. That is
why the draft lists them in this order, and why any prefix of it is a tree.

A score of -inf marks a node that does not exist or cannot be accepted. Such
nodes rank last and are no part of the draft.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.typing import Array, Bool, Float, Int

DEAD = -jnp.inf


class Pool(NamedTuple):
  """Recorded nodes in order of creation, the anchor not among them.

  Attributes:
    tokens: their tokens.
    parents: index of each one's parent in the pool, always smaller; -1 for the
      anchor.
    log_probs: of the token given its parent.
    scores: of the path, as `path_score` makes them.
  """

  tokens: Int[Array, 'B pool']
  parents: Int[Array, 'B pool']
  log_probs: Float[Array, 'B pool']
  scores: Float[Array, 'B pool']


def path_score(
  parent_score: Float[Array, '...'], log_prob: Float[Array, '...']
) -> Float[Array, '...']:
  """The score of a child; both arguments broadcast."""
  return jnp.minimum(parent_score, parent_score + log_prob)


def top(
  scores: Float[Array, 'B pool'], count: int
) -> tuple[Float[Array, 'B count'], Int[Array, 'B count']]:
  """The best `count` scores and their indices; equal ones by index.

  Where the pool is smaller the rest is -inf, at indices that are in range.
  """
  missing = count - scores.shape[1]
  if missing > 0:
    scores = jnp.pad(scores, ((0, 0), (0, missing)), constant_values=DEAD)
  best, index = jax.lax.top_k(scores, count)
  return best, jnp.minimum(index, scores.shape[1] - max(missing, 0) - 1)


def draft(pool: Pool, anchor: Int[Array, 'B'], num_nodes: int) -> tree.Draft:
  """The best `num_nodes - 1` nodes of the pool behind the anchor.

  Args:
    pool: what was recorded; nodes of score -inf are left out.
    anchor: node 0.
    num_nodes: T, nodes of the draft at most, anchor included.

  Returns:
    A deterministic draft (`q` None) of T nodes, its nodes by falling survival;
    `confidence` is the probability of each token given its parent.
  """
  if num_nodes == 1:
    return tree.plain(anchor)
  scores, index = top(pool.scores, num_nodes - 1)
  is_live = scores > DEAD
  tokens, parents, log_probs = (
    jnp.take_along_axis(of, index, axis=1)
    for of in (pool.tokens, pool.parents, pool.log_probs)
  )
  return _behind(
    anchor,
    jnp.where(is_live, tokens, 0),
    jnp.where(is_live, renumber(parents, index, is_live), 0),
    jnp.where(is_live, jnp.exp(log_probs), 0.0),
    is_live,
  )


def renumber(
  parents: Int[Array, 'B count'],
  index: Int[Array, 'B count'],
  is_live: Bool[Array, 'B count'],
) -> Int[Array, 'B count']:
  """Node numbers of pool indices, when node i + 1 is pool entry `index[i]`.

  Compares all pairs, which is cheaper on an accelerator than a scatter or a
  search, at the few nodes a draft has. An entry that was not chosen, like the
  anchor's -1, becomes 0.
  """
  same = parents[:, :, None] == index[:, None, :]
  same &= is_live[:, None, :]
  number = jnp.arange(1, index.shape[1] + 1, dtype=jnp.int32)
  return jnp.max(jnp.where(same, number, 0), axis=-1)


def _behind(anchor, tokens, parents, confidence, is_live) -> tree.Draft:
  """Puts the anchor in front of the nodes."""

  def with_first(first, rest):
    first = jnp.broadcast_to(jnp.asarray(first, rest.dtype), anchor.shape)
    return jnp.concatenate([first[:, None], rest], axis=1)

  return tree.Draft(
    tokens=with_first(anchor, tokens.astype(anchor.dtype)),
    parents=with_first(-1, parents),
    num_nodes=1 + jnp.sum(is_live, axis=1, dtype=jnp.int32),
    confidence=with_first(1, confidence),
  )
