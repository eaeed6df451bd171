# SPDX-License-Identifier: MIT
"""Block verification of a sampled chain.

With p the target's and q the draft's law behind X_1 .. X_i, c the length,

  a_0 = 1 ,  a_i = min(1, a_{i-1} p(X_i) / q(X_i))
  Z_i = sum [a_i p - q]_+ ,  h_i = Z_i / (Z_i + 1 - a_i) ,  h_c = a_c
  keep X_1 .. X_t for the largest t with U_t < h_t ,  t = 0 if none
  then draw from [a_t p - q]_+ , and from p behind the last

A later node may pass where an earlier one fails, so drafts are kept as a block:
never fewer on average than token by token, and no rule for one chain keeps
more. (Sun et al., arXiv 2403.10444.)

All tests are looked at, so their random numbers belong to the round (`keys`).
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
  """Keeps the longest prefix of each chain that passes as a block."""
  draft = nodes.chain_only(draft)
  return decision.accept(decide, logits, draft, params, anchor_positions)


def decide(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  tests: Float[Array, 'B T'],
) -> decision.Decision:
  """Where each chain stops, given the uniforms of its nodes."""
  num_rows, num_nodes = draft.tokens.shape

  def step(state):
    depth, num_live, alphas, chances = state
    child = jnp.minimum(depth + 1, num_nodes - 1)
    token, alpha = draft.tokens[:, child], alphas[:, depth]
    node = jnp.full((num_rows,), depth, jnp.int32)
    _, r = decision.open_node(logits, draft, params, node, node + 1 < num_live)
    is_here = depth < num_live
    # Behind a token that was not drawn nothing can be tested.
    is_inner = residual.is_drawn(r, token)
    num_live = jnp.where(is_inner, num_live, jnp.minimum(num_live, depth + 1))
    total = residual.left_mass(r, alpha)
    chance = jnp.where(is_inner, residual.next_alpha(total, alpha), alpha)
    chances = chances.at[:, depth].set(jnp.where(is_here, chance, -1.0))
    after = jnp.minimum(1.0, alpha * residual.ratio(r, token))
    alphas = alphas.at[:, depth + 1].set(after, mode='drop')
    return depth + 1, num_live, alphas, chances

  def is_running(state):
    depth, num_live, alphas, _ = state
    last = jnp.minimum(depth, num_nodes - 1)
    return jnp.any((depth < num_live) & (alphas[:, last] > 0))

  _, num_live, alphas, chances = lax.while_loop(
    is_running,
    step,
    (
      jnp.int32(0),
      jnp.minimum(draft.num_nodes, num_nodes),
      jnp.ones((num_rows, num_nodes), jnp.float32),
      jnp.full((num_rows, num_nodes), -1.0),
    ),
  )
  index = jnp.arange(num_nodes, dtype=jnp.int32)
  last = jnp.max(jnp.where(tests < chances, index, 0), axis=1)
  return decision.Decision(
    path=jnp.broadcast_to(index, tests.shape),
    num_accepted=last,
    weights=_weights(logits, draft, params, last, num_live, alphas),
    chances=chances.at[:, 0].set(-1.0),  # The anchor always passes.
  )


def _weights(logits, draft, params, last, num_live, alphas):
  """[a p - q]_+ where a draft was turned down, p behind the last one."""
  p, r = decision.open_node(logits, draft, params, last, last + 1 < num_live)
  child = jnp.minimum(last + 1, draft.tokens.shape[1] - 1)
  left, _ = residual.turn_down(
    r,
    nodes.take(draft.tokens, child),
    nodes.take(alphas, last),
    draft.q.draws,
  )
  return residual.weights(p, left)
