# SPDX-License-Identifier: MIT
"""Traversal verification of a tree with sampled siblings, from leaf to root.

Node v has P (first the target's law) and Q (the draft's) for its children, and
alpha: 1 at the anchor, min(1, alpha(v) P(x) / Q(x)) at v's child x.

  go down along first remaining children to a leaf w
  w is the anchor, or U < alpha(w): keep the path to w, draw a token from P(w)
  else take w out and change its parent v:
    d = [alpha(v) P - Q]_+ , S = sum d , P <- d / S
    alpha(v) <- S / (S + 1 - alpha(v))
    siblings drawn without replacement: Q(x) <- 0, renormalised

A node is tested when all its children are out. Block verification is the case
of a chain. (Weng et al., arXiv 2505.12398.) The update of alpha(v) is exact for
both ways of drawing siblings; min(1, S / (1 - Q(x))), which circulates, is not.

Which node comes next depends on the shape alone: children before parents,
siblings in order. So each node is entered once, with an alpha that is final
until its own children are done, and the target's law is computed for entered
nodes that have children. All tests before the last are looked at, so their
random numbers belong to the round (`keys`).
"""

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from jspec import tree
from jspec.decode import sampling
from jspec.decode.verify import accepted, decision, nodes, residual
from jspec.typing import Array, Bool, Float, Int


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """Keeps the path to the first node that passes, from the leaves up."""
  return decision.accept(decide, logits, draft, params, anchor_positions)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
  """Where each row is, and what is known of its nodes.

  Attributes:
    node: the node a row is at.
    depth: how far below the anchor that is.
    path: the nodes from the anchor to it; what lies behind is left over.
    is_done: the node was kept.
    alphas: alpha of the nodes that were entered.
    left: P and Q of the nodes that were entered and have children.
    last_child: the child that was entered last; the node itself before.
    chances: see `Decision`.
  """

  node: Int[Array, 'B']
  depth: Int[Array, 'B']
  path: Int[Array, 'B T']
  is_done: Bool[Array, 'B']
  alphas: Float[Array, 'B T']
  left: residual.Residual
  last_child: Int[Array, 'B T']
  chances: Float[Array, 'B T']


def decide(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  tests: Float[Array, 'B T'],
) -> decision.Decision:
  """Where each row stops, given the uniforms of its nodes."""
  num_nodes = draft.tokens.shape[1]
  has_children = nodes.has_children(draft)
  start = _start(*draft.tokens.shape, draft.q.ids.shape[-1])
  blank = _take_left(start.left, start.node)

  def enter(state):
    """Opens the node each row is at, if it has children."""
    node = state.node
    is_opened = ~state.is_done & nodes.take(has_children, node)
    new = lax.cond(
      jnp.any(is_opened),
      lambda: decision.open_node(logits, draft, params, node, is_opened)[1],
      lambda: blank,
    )
    return dataclasses.replace(
      state, left=_put_left(state.left, node, new, is_opened)
    )

  def next_child(state):
    last_child = nodes.take(state.last_child, state.node)
    return nodes.next_child(draft, state.node, last_child)

  def is_tested(state):
    return ~state.is_done & (next_child(state) >= num_nodes)

  def test(state):
    """Tests the nodes without children left, and takes out those that fail."""
    node, is_here = state.node, is_tested(state)
    alpha = nodes.take(state.alphas, node)
    is_anchor = node == 0
    passes = is_anchor | (nodes.take(tests, node) < alpha)
    is_out = is_here & ~passes
    parent = jnp.maximum(nodes.take(draft.parents, node), 0)
    left, alpha_of_parent = residual.turn_down(
      _take_left(state.left, parent),
      nodes.take(draft.tokens, node),
      nodes.take(state.alphas, parent),
      draft.q.draws,
    )
    return dataclasses.replace(
      state,
      node=jnp.where(is_out, parent, node),
      depth=state.depth - is_out,
      is_done=state.is_done | (is_here & passes),
      alphas=_put(state.alphas, parent, alpha_of_parent, is_out),
      left=_put_left(state.left, parent, left, is_out),
      chances=_put(state.chances, node, alpha, is_here & ~is_anchor),
    )

  def descend(state):
    """Goes on to the next child of the node each row is at."""
    node, goes_on = state.node, ~state.is_done
    child = jnp.where(goes_on, next_child(state), node)
    ratio = residual.ratio(
      _take_left(state.left, node), nodes.take(draft.tokens, child)
    )
    alpha = jnp.minimum(1.0, nodes.take(state.alphas, node) * ratio)
    depth = state.depth + goes_on
    return dataclasses.replace(
      state,
      node=child,
      depth=depth,
      path=_put(state.path, depth, child, goes_on),
      alphas=_put(state.alphas, child, alpha, goes_on),
      last_child=_put(state.last_child, node, child, goes_on),
    )

  def step(state):
    state = lax.while_loop(
      lambda state: jnp.any(is_tested(state)), test, enter(state)
    )
    return descend(state)

  end = lax.while_loop(lambda state: jnp.any(~state.is_done), step, start)
  p = sampling.law(nodes.take(logits, end.node), params)
  return decision.Decision(
    path=end.path,
    num_accepted=end.depth,
    weights=residual.weights(p, _take_left(end.left, end.node)),
    chances=end.chances,
  )


def _start(num_rows, num_nodes, support):
  """Every row at its anchor, which no test can fail."""
  zeros = jnp.zeros((num_rows,), jnp.int32)
  every = jnp.zeros((num_rows, num_nodes), jnp.int32)
  blank = residual.blank(num_rows, support)
  return _State(
    node=zeros,
    depth=zeros,
    path=every,
    is_done=zeros > 0,
    alphas=jnp.ones((num_rows, num_nodes), jnp.float32),
    left=jax.tree.map(lambda x: jnp.repeat(x[:, None], num_nodes, 1), blank),
    last_child=every + jnp.arange(num_nodes, dtype=jnp.int32),
    chances=jnp.full((num_rows, num_nodes), -1.0),
  )


def _put(x, node, value, condition):
  """Sets entry `node` of the rows where `condition` holds."""
  column = jnp.where(condition, node, x.shape[1])
  return x.at[jnp.arange(x.shape[0]), column].set(value, mode='drop')


def _put_left(left, node, value, condition):
  return jax.tree.map(lambda x, new: _put(x, node, new, condition), left, value)


def _take_left(left, node):
  return jax.tree.map(lambda x: nodes.take(x, node), left)
