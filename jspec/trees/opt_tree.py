# SPDX-License-Identifier: MIT
"""OPT-Tree: expand while a level still pays (arXiv 2406.17276).

With n = num_nodes - 1, every level keeps its n best nodes, and

  E_d = sum of the n largest path probabilities of depth 1 .. d

is what the best n nodes found so far expect to be accepted. A row goes on while
E_d - E_{d-1} > threshold and d < max_depth (E_0 = 0); the level whose gain was
too small has been computed and stays in. The draft is the best n of all levels:
among all trees of n nodes and as deep the one that expects most, because a node
among the best n is among the best n of its level and so is its parent.

Every row stops by itself; the drafter runs until all have, so a row's draft
does not depend on its neighbours.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.trees import candidates, expansion, select
from jspec.typing import Array, Bool, Float, Int, PyTree


class _Growth(NamedTuple):
  """What the loop carries; `levels` holds [B, max_depth, n] arrays."""

  state: PyTree
  frontier: expansion.Frontier
  levels: select.Pool
  best: Float[Array, 'B n']
  is_growing: Bool[Array, 'B']


def build(
  step: expansion.Step,
  state: PyTree,
  root: candidates.Candidates,
  anchor: Int[Array, 'B'],
  *,
  num_nodes: int,
  max_depth: int,
  threshold: float | Float[Array, ''] = 0.5,
) -> tuple[tree.Draft, PyTree]:
  """Grows until no row gains; the drafter runs on num_nodes - 1 nodes a level.

  Args:
    step: runs the drafter on a beam; Q candidates a node, of which more than
      num_nodes - 1 are no use.
    state: what `step` takes first.
    root: [B, Q'], the candidates behind the anchor.
    anchor: node 0.
    num_nodes: T, static.
    max_depth: static; the drafter runs at most max_depth - 1 times.
    threshold: drafts that another level must have gained.

  Returns:
    A deterministic draft, nodes by falling path probability, and the state
    after the last step.
  """
  if num_nodes == 1:
    return tree.plain(anchor), state
  rows, width = anchor.shape[0], num_nodes - 1
  first = expansion.behind_anchor(root)
  frontier = expansion.first_frontier(first, width, max(max_depth - 1, 1))
  shape = (rows, max_depth, width)
  empty = select.Pool(
    tokens=jnp.zeros(shape, jnp.int32),
    parents=jnp.zeros(shape, jnp.int32),
    log_probs=jnp.zeros(shape, jnp.float32),
    scores=jnp.full(shape, select.DEAD, jnp.float32),
  )
  growth = _keep(
    _Growth(
      state=state,
      frontier=frontier,
      levels=empty,
      best=jnp.full((rows, width), select.DEAD, jnp.float32),
      is_growing=jnp.ones((rows,), bool),
    ),
    frontier,
    first,
    jnp.int32(0),
    threshold,
  )

  def goes_on(growth):
    is_shallow = growth.frontier.beam.level < max_depth - 1
    return is_shallow & jnp.any(growth.is_growing)

  def deepen(growth):
    before = growth.frontier
    state, found = step(growth.state, before.beam)
    level = expansion.children(before, found)
    after = expansion.next_frontier(before, level, jnp.int32(0))
    growth = growth._replace(state=state)
    return _keep(growth, after, level, after.beam.level, threshold)

  growth = jax.lax.while_loop(goes_on, deepen, growth)
  pool = select.Pool(*(x.reshape(rows, -1) for x in growth.levels))
  return select.draft(pool, anchor, num_nodes), growth.state


def _keep(growth, frontier, level, number, threshold) -> _Growth:
  """Records a level's best nodes in the rows that grow; the others stop.

  `frontier.index` counts in `level`; in the pool a level is its beam only, so
  the beam is numbered anew.
  """
  rows, width = frontier.scores.shape
  is_growing = growth.is_growing[:, None]
  scores = jnp.where(is_growing, frontier.scores, select.DEAD)
  in_pool = number * width + jnp.arange(width, dtype=jnp.int32)
  parents = (number - 1) * width + frontier.beam.parents
  made = select.Pool(
    tokens=frontier.beam.tokens,
    parents=jnp.where(number > 0, parents, -1),
    log_probs=jnp.take_along_axis(level.log_probs, frontier.index, axis=1),
    scores=scores,
  )
  levels = select.Pool(
    *(
      jax.lax.dynamic_update_index_in_dim(kept, new, number, axis=1)
      for kept, new in zip(growth.levels, made, strict=True)
    )
  )
  best, _ = select.top(jnp.concatenate([growth.best, scores], axis=1), width)
  gain = jnp.sum(jnp.exp(best) - jnp.exp(growth.best), axis=1)
  is_growing = growth.is_growing & (gain > threshold)
  beam = frontier.beam._replace(
    is_live=frontier.beam.is_live & is_growing[:, None]
  )
  return growth._replace(
    frontier=expansion.Frontier(
      beam=beam,
      scores=jnp.where(is_growing[:, None], scores, select.DEAD),
      index=jnp.broadcast_to(in_pool, (rows, width)),
    ),
    levels=levels,
    best=best,
    is_growing=is_growing,
  )
