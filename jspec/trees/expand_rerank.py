# SPDX-License-Identifier: MIT
"""EAGLE-2's dynamic tree: expand a beam, then rerank all it saw.

  record the candidates behind the anchor
  num_steps times: run the drafter on the best `width` nodes of the last level,
                   record all their candidates
  draft: the best num_nodes - 1 of everything recorded

The draft's nodes are the best of those recorded by path probability; what the
beam never ran on is not seen, so a wider beam may find a better tree. The
deepest node lies num_steps + 1 behind the anchor. (Li et al., arXiv
2406.16858; EAGLE-3 builds its trees the same way.)
"""

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.trees import candidates, expansion, select
from jspec.typing import Array, Int, PyTree


def build(
  step: expansion.Step,
  state: PyTree,
  root: candidates.Candidates,
  anchor: Int[Array, 'B'],
  *,
  num_nodes: int,
  width: int,
  num_steps: int,
) -> tuple[tree.Draft, PyTree]:
  """Grows and prunes; the drafter runs `num_steps` times on `width` nodes.

  Args:
    step: runs the drafter on a beam; returns Q candidates a node, the same Q
      every time (the paper has Q = width = 10).
    state: what `step` takes first.
    root: [B, Q'], the candidates behind the anchor.
    anchor: node 0.
    num_nodes: T, static.
    width: nodes of a beam, static.
    num_steps: levels after the first, static.

  Returns:
    A deterministic draft, nodes by falling path probability, and the state
    after the last step.
  """
  level = expansion.behind_anchor(root)
  recorded = [level]
  if num_steps > 0 and num_nodes > 1:
    frontier = expansion.first_frontier(level, width, num_steps)
    num_first = level.scores.shape[1]

    def deepen(carry, number):
      state, frontier = carry
      state, found = step(state, frontier.beam)
      level = expansion.children(frontier, found)
      first = num_first + number * level.scores.shape[1]
      return (state, expansion.next_frontier(frontier, level, first)), level

    numbers = jnp.arange(num_steps, dtype=jnp.int32)
    (state, _), levels = jax.lax.scan(deepen, (state, frontier), numbers)
    rows = anchor.shape[0]
    recorded.append(
      select.Pool(*(jnp.swapaxes(x, 0, 1).reshape(rows, -1) for x in levels))
    )
  pool = select.Pool(
    *(jnp.concatenate(parts, axis=1) for parts in zip(*recorded, strict=True))
  )
  return select.draft(pool, anchor, num_nodes), state
