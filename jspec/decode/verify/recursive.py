# SPDX-License-Identifier: MIT
"""Recursive rejection over sampled siblings.

At a visited node P is the target's law and Q the draft's. For each child x, in
the order drawn:

  accept with chance min(1, P(x) / Q(x)) and visit it next; else
  P <- norm [P - Q]_+
  siblings drawn without replacement: Q(x) <- 0, renormalised

Where no child is accepted, or there is none, a token is drawn from P.
Independent siblings: Miao et al., arXiv 2305.09781; without replacement: Jeon
et al., arXiv 2402.14160. On a chain it is token by token verification.
"""

import jax.numpy as jnp
from jax import lax

from jspec import tree
from jspec.decode import sampling
from jspec.decode.verify import accepted, decision, nodes, residual
from jspec.typing import Array, Float, Int


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """Goes down to the first accepted child until none is."""
  return decision.accept(decide, logits, draft, params, anchor_positions)


def decide(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  tests: Float[Array, 'B T'],
) -> decision.Decision:
  """Where each row stops, given the uniforms of its nodes."""
  num_rows, num_nodes = draft.tokens.shape
  draws = draft.q.draws
  has_children = nodes.has_children(draft)
  blank = residual.blank(num_rows, draft.q.ids.shape[-1])
  rows = jnp.arange(num_rows)

  def try_children(node, is_active, chances):
    """The child to visit (T: none), what is left, the chances seen so far."""
    has_child = is_active & nodes.take(has_children, node)
    _, left = decision.open_node(logits, draft, params, node, has_child)

    def step(state):
      child, _, left, chances = state
      at = jnp.minimum(child, num_nodes - 1)
      token = nodes.take(draft.tokens, at)
      chance = jnp.minimum(1.0, residual.ratio(left, token))
      chance = jnp.where(residual.is_drawn(left, token), chance, 0.0)
      # Rows without a child to test write behind the last node.
      is_tested = state[1] & (child < num_nodes)
      column = jnp.where(is_tested, child, num_nodes)
      chances = chances.at[rows, column].set(chance, mode='drop')
      is_down = is_tested & (nodes.take(tests, at) >= chance)
      after, _ = residual.turn_down(left, token, jnp.ones_like(chance), draws)
      left = residual.where(is_down, after, left)
      child = jnp.where(is_down, nodes.next_child(draft, node, child), child)
      return child, is_down, left, chances

    child = nodes.next_child(draft, node, node)
    child = jnp.where(has_child, child, num_nodes)
    child, _, left, chances = lax.while_loop(
      lambda state: jnp.any(state[1] & (state[0] < num_nodes)),
      step,
      (child, has_child, left, chances),
    )
    return child, left, chances

  def step(state):
    depth, node, is_active, path, left, chances = state
    child, tried, chances = try_children(node, is_active, chances)
    left = residual.where(is_active, tried, left)
    is_active = is_active & (child < num_nodes)
    left = residual.where(is_active, blank, left)
    node = jnp.where(is_active, child, node)
    path = path.at[:, depth + 1].set(jnp.where(is_active, node, 0), mode='drop')
    return depth + 1, node, is_active, path, left, chances

  def is_running(state):
    _, node, is_active, *_ = state
    return jnp.any(is_active & nodes.take(has_children, node))

  _, node, _, path, left, chances = lax.while_loop(
    is_running,
    step,
    (
      jnp.int32(0),
      jnp.zeros((num_rows,), jnp.int32),
      jnp.ones((num_rows,), bool),
      jnp.zeros((num_rows, num_nodes), jnp.int32),
      blank,
      jnp.full((num_rows, num_nodes), -1.0),
    ),
  )
  p = sampling.law(nodes.take(logits, node), params)
  return decision.Decision(
    path=path,
    num_accepted=jnp.sum(path > 0, axis=1, dtype=jnp.int32),
    weights=residual.weights(p, left),
    chances=chances,
  )
