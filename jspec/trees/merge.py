# SPDX-License-Identifier: MIT
"""Makes one node of nodes that are the same path (a trie).

Two ways to a token give siblings with equal tokens: a second block drafts what
the first one had, two branches agree behind their cuts. A walk down the tree
follows one of them and never sees what hangs below the other, so equal siblings
are merged, top down, and their children become siblings.

The merged node has the best score of its members. No child scores above its
own parent, hence none above the merged one, and the pool stays closed; what
its members were given their parents becomes the ratio of the scores.
"""

import jax
import jax.numpy as jnp

from jspec.trees import candidates, select
from jspec.typing import Array, Bool, Int


def merge(pool: select.Pool) -> select.Pool:
  """The pool with every path once; later copies are dead.

  Compares all pairs, as often as there are levels of copies below copies, plus
  one: for pools of a few hundred nodes.
  """
  rows, size = pool.tokens.shape
  number = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), (rows, size))
  first = jax.lax.while_loop(
    lambda carry: carry[1],
    lambda carry: _again(pool, carry[0]),
    (number, jnp.bool_(True)),
  )[0]
  parents = _parents(pool, first)
  scores = jnp.max(
    jnp.where(_same(pool, parents), pool.scores[:, None, :], select.DEAD),
    axis=-1,
  )
  above = jnp.take_along_axis(scores, jnp.maximum(parents, 0), axis=1)
  above = jnp.where(parents < 0, 0.0, above)
  return select.Pool(
    tokens=pool.tokens,
    parents=parents,
    log_probs=candidates.clean(scores - above),
    scores=jnp.where(first == number, scores, select.DEAD),
  )


def _again(pool, first) -> tuple[Int[Array, 'B pool'], Bool[Array, '']]:
  """Looks for the first copy of every node, given those of its parent."""
  same = _same(pool, _parents(pool, first))
  number = jnp.arange(first.shape[1], dtype=jnp.int32)
  # A dead node equals nothing; it stands for itself.
  found = jnp.min(jnp.where(same, number, first.shape[1]), axis=-1)
  found = jnp.minimum(found, number)
  return found, jnp.any(found != first)


def _parents(pool, first) -> Int[Array, 'B pool']:
  """What became of every node's parent."""
  above = jnp.take_along_axis(first, jnp.maximum(pool.parents, 0), axis=1)
  return jnp.where(pool.parents < 0, -1, above)


def _same(pool, parents) -> Bool[Array, 'B pool pool']:
  """Which live nodes have the same parent and the same token."""
  is_live = pool.scores > select.DEAD
  same = parents[:, :, None] == parents[:, None, :]
  same &= pool.tokens[:, :, None] == pool.tokens[:, None, :]
  return same & is_live[:, :, None] & is_live[:, None, :]
