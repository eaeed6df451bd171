# SPDX-License-Identifier: MIT
"""Rule R2: token by token verification of a sampled chain.

Row b's node j holds draft token y_j (node 0: the anchor), the target's law
p_{j+1} of the token after it, and the law q_{j+1} its child y_{j+1} was drawn
from. Accept y_{j+1} if u q(y) < p(y); a rejected one is replaced by a draw from
norm [p - q]_+ at the row that rejected it; behind the last one a token is drawn
from p. The law is that of plain decoding, the tokens are not. (Leviathan et
al., arXiv 2211.17192, section 2.3 and appendix A.1.)

Rows are read as they are visited; a batch that is all greedy is matched in one
pass. Filters and temperature shape p before any test, so temperature 0 accepts
the longest match with the argmax.

Whether a position is verified must not depend on the token drafted there or
later.
"""

import jax.numpy as jnp
from jax import lax

from jspec import tree
from jspec.decode import keys, sampling
from jspec.decode.verify import accepted, nodes, walk
from jspec.typing import Array, Float, Int


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """Keeps the longest prefix of each chain that its tests allow."""

  def uniforms_at(role):
    return lambda depth: keys.uniforms(
      params.seeds, anchor_positions + 1 + depth, role
    )

  return accept_with(
    logits,
    draft,
    params,
    uniforms_at(keys.ACCEPT),
    uniforms_at(keys.RESIDUAL),
  )


def accept_with(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  accept_uniforms: walk.UniformsAt,
  residual_uniforms: walk.UniformsAt,
) -> accepted.Accepted:
  """`accept` with the randomness given, so that it can be enumerated."""
  draft = nodes.chain_only(draft)
  return lax.cond(
    jnp.any(params.temperature > 0),
    lambda: _go_down(logits, draft, params, accept_uniforms, residual_uniforms),
    lambda: walk.match(logits, draft),
  )


def _go_down(logits, draft, params, accept_uniforms, residual_uniforms):
  """Goes down the chains node by node until every row has stopped."""
  num_rows, num_nodes = draft.tokens.shape

  def decide(depth, is_active):
    """The token each row decides on behind node `depth`, and if it goes on."""

    def at(x, index):
      return lax.dynamic_index_in_dim(x, index, axis=1, keepdims=False)

    drafted = at(draft.tokens, jnp.minimum(depth + 1, num_nodes - 1))
    is_drafted = (depth + 1 < draft.num_nodes) & (depth + 1 < num_nodes)
    u = accept_uniforms(depth)
    q_ids, q_probs = at(draft.q.ids, depth), at(draft.q.probs, depth)
    p = sampling.law(at(logits, depth), params)
    is_kept = is_drafted & _passes(p, drafted, q_ids, q_probs, u)
    is_rejected = is_drafted & ~is_kept
    token = lax.cond(
      jnp.any(is_active & ~is_kept),
      lambda: _replace(
        p, q_ids, q_probs, is_rejected, u, residual_uniforms(depth)
      ),
      lambda: drafted,
    )
    return jnp.where(is_kept, drafted, token), is_kept

  def step(state):
    depth, is_active, tokens, num_accepted = state
    token, goes_on = decide(depth, is_active)
    token = jnp.where(is_active, token, 0).astype(tokens.dtype)
    tokens = lax.dynamic_update_index_in_dim(tokens, token, depth, axis=1)
    is_active = is_active & goes_on
    return depth + 1, is_active, tokens, num_accepted + is_active

  def is_running(state):
    depth, is_active, _, _ = state
    return jnp.any(is_active) & (depth < num_nodes)

  _, _, tokens, num_accepted = lax.while_loop(
    is_running,
    step,
    (
      jnp.int32(0),
      jnp.ones((num_rows,), bool),
      jnp.zeros((num_rows, num_nodes), jnp.int32),
      jnp.zeros((num_rows,), jnp.int32),
    ),
  )
  node = jnp.arange(num_nodes, dtype=jnp.int32)
  path = jnp.where(node <= num_accepted[:, None], node, 0)
  return accepted.Accepted(path, num_accepted, tokens)


def _passes(p, drafted, q_ids, q_probs, u):
  """Whether each drafted token passes its test, with chance min(1, p / q)."""
  p_drafted = jnp.take_along_axis(p, drafted[:, None], axis=1)[:, 0]
  is_drafted = q_ids == drafted[:, None]
  q_drafted = jnp.sum(jnp.where(is_drafted, q_probs, 0.0), axis=-1)
  return u * q_drafted < p_drafted


def _replace(p, q_ids, q_probs, is_rejected, accept_uniform, residual_uniform):
  """Draws from [p - q]_+ where a draft token was rejected, from p elsewhere."""
  rows = jnp.arange(p.shape[0])[:, None]
  taken = jnp.where(is_rejected[:, None], q_probs, 0.0)
  rest = jnp.maximum(p.at[rows, q_ids].add(-taken), 0.0)
  # Equal laws reject only by rounding, and leave nothing: p itself is right.
  is_empty = jnp.max(rest, axis=-1, keepdims=True) <= 0
  u = jnp.where(is_rejected, residual_uniform, accept_uniform)
  return sampling.draw(jnp.where(is_empty, p, rest), u)
