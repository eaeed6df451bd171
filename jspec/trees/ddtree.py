# SPDX-License-Identifier: MIT
"""DDTree: the best tree that per-depth marginals allow (arXiv 2604.12989).

A block drafter gives one law for every depth, whatever was drafted before, so a
prefix y_1 .. y_d has probability q_1(y_1) ... q_d(y_d). The n most probable
prefixes form a tree, and no other tree of n nodes expects more accepted tokens
under that law.

The published search pops a heap n times. The same set, with static shapes:

  beam_d = the best n of beam_{d-1} x the candidates of depth d    d = 1 .. G
  draft  = the best n of beam_1, ..., beam_G

because a prefix among the best n is among the best n of its length, and so is
its parent. With both lists sorted, child r of beam entry i has (i+1)(r+1) - 1
others at least as good (both counted from 0), so only pairs with
(i+1)(r+1) <= n are scored: about n ln n of them and not n * Q.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.trees import candidates, select
from jspec.typing import Array, Int


def build(
  marginals: candidates.Candidates, anchor: Int[Array, 'B'], num_nodes: int
) -> tree.Draft:
  """The `num_nodes - 1` most probable prefixes behind the anchor.

  Args:
    marginals: [B, G, Q], for every depth; Q of at least num_nodes - 1 loses
      nothing, a smaller Q leaves out rarer siblings.
    anchor: node 0.
    num_nodes: T, static. A prefix of probability 0 is never a node, so a row
      may hold fewer.

  Returns:
    A deterministic draft, nodes by falling path probability.
  """
  if num_nodes == 1:
    return tree.plain(anchor)
  log_probs = candidates.clean(marginals.log_probs)
  rows, num_depths, num_ranks = log_probs.shape
  width = num_nodes - 1
  slot, rank = _pairs(width, num_ranks)

  def deepen(beam, depth):
    scores, chosen = select.top(
      select.path_score(beam[:, slot], depth.log_probs[:, rank]), width
    )
    chosen_rank = rank[chosen]
    return scores, select.Pool(
      tokens=jnp.take_along_axis(depth.ids, chosen_rank, axis=1),
      parents=slot[chosen],
      log_probs=jnp.take_along_axis(depth.log_probs, chosen_rank, axis=1),
      scores=scores,
    )

  # At first the anchor alone, in slot 0.
  beam = jnp.full((rows, width), select.DEAD, jnp.float32).at[:, 0].set(0.0)
  _, levels = jax.lax.scan(
    deepen,
    beam,
    candidates.Candidates(
      jnp.swapaxes(log_probs, 0, 1), jnp.swapaxes(marginals.ids, 0, 1)
    ),
  )
  # Slots of a level become indices in the pool; those before it: the anchor.
  first = (jnp.arange(num_depths, dtype=jnp.int32) - 1) * width
  first = first[:, None, None]
  levels = levels._replace(
    parents=jnp.where(first < 0, -1, first + levels.parents)
  )
  pool = select.Pool(
    *(jnp.swapaxes(x, 0, 1).reshape(rows, num_depths * width) for x in levels)
  )
  return select.draft(pool, anchor, num_nodes)


def _pairs(width: int, num_ranks: int) -> tuple[Array, Array]:
  """Beam slots and ranks that can be among the best `width`, slot by slot."""
  slot, rank = np.divmod(np.arange(width * num_ranks), num_ranks)
  keep = (slot + 1) * (rank + 1) <= width
  return jnp.asarray(slot[keep], jnp.int32), jnp.asarray(rank[keep], jnp.int32)
