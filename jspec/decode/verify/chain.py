# SPDX-License-Identifier: MIT
"""Lossless verification of a chain of draft tokens.

Row b's node j holds draft token y_j (node 0: the anchor) and the target's
logits for the token after it, law p_{j+1}.

  R1, `draft.q` None: the drafts are a function of the committed prefix. Draw
      z ~ p_{j+1} with that position's key; go on while z = y_{j+1}, stop and
      commit z where it is not. The tokens are those of plain decoding with the
      same seed, whatever was drafted.
  R2, `draft.q` given: y_{j+1} was drawn from q_{j+1}. Accept it if
      u q(y) < p(y); a rejected one is replaced by a draw from
      norm [p - q]_+ at the row that rejected it; behind the last one a token
      is drawn from p. The law is that of plain decoding, the tokens are not.
      (Leviathan et al., arXiv 2211.17192, section 2.3 and appendix A.1.)

Rows are read as they are visited; a batch that is all greedy is matched in one
pass. Filters and temperature shape p before any test, so temperature 0 accepts
the longest match with the argmax under both rules.

R2 demands that whether a position is verified does not depend on the token
drafted there or later. Trees are not here.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jspec import tree
from jspec.decode import keys, sampling
from jspec.typing import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accepted:
  """What a round keeps.

  Attributes:
    path: node indices along the chain, the anchor first; the first
      num_accepted + 1 are kept (they become cache rows).
    num_accepted: draft tokens kept, without the bonus.
    tokens: the accepted draft tokens, then the bonus (num_accepted + 1 tokens
      to commit), then zeros.
  """

  path: Int[Array, 'B T']
  num_accepted: Int[Array, 'B']
  tokens: Int[Array, 'B T']


# The uniforms of every row for its decision at a depth (0: behind the anchor).
UniformsAt = Callable[[Int[Array, '']], Float[Array, 'B']]


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> Accepted:
  """Keeps the longest prefix of each chain that verification allows.

  Args:
    logits: the target's, row j for the token after node j.
    draft: chains; `num_nodes` says where each ends.
    params: sampling parameters of the rows.
    anchor_positions: absolute position of each anchor; the token behind it is
      decided with the keys of the position after.
  """

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
  accept_uniforms: UniformsAt,
  residual_uniforms: UniformsAt,
) -> Accepted:
  """`accept` with the randomness given, so that it can be enumerated."""
  return lax.cond(
    jnp.any(params.temperature > 0),
    lambda: _walk(logits, draft, params, accept_uniforms, residual_uniforms),
    lambda: _match(logits, draft),
  )


def _match(logits, draft):
  """Both rules when every row is greedy: the longest match with the argmax.

  One pass over all nodes; it beats a walk, whose steps cost more than an argmax
  each.
  """
  num_rows, num_nodes = draft.tokens.shape
  best = sampling.argmax(logits.reshape(num_rows * num_nodes, -1))
  best = best.reshape(num_rows, num_nodes)
  node = jnp.arange(num_nodes, dtype=jnp.int32)
  is_hit = best[:, :-1] == draft.tokens[:, 1:]
  is_hit &= node[1:] < draft.num_nodes[:, None]
  num_accepted = jnp.sum(jnp.cumprod(is_hit.astype(jnp.int32), axis=1), axis=1)
  tokens = jnp.where(node <= num_accepted[:, None], best, 0)
  return _accepted(tokens, num_accepted)


def _walk(logits, draft, params, accept_uniforms, residual_uniforms):
  """Goes down the chains node by node until every row has stopped."""
  num_rows, num_nodes = draft.tokens.shape

  def decide(depth, is_active):
    """The token each row decides on behind node `depth`, and if it goes on."""
    row = lax.dynamic_index_in_dim(logits, depth, axis=1, keepdims=False)
    child = jnp.minimum(depth + 1, num_nodes - 1)
    drafted = lax.dynamic_index_in_dim(draft.tokens, child, 1, keepdims=False)
    is_drafted = (depth + 1 < draft.num_nodes) & (depth + 1 < num_nodes)
    u = accept_uniforms(depth)
    if draft.q is None:
      token = sampling.sample(row, params, u)
      return token, is_drafted & (token == drafted)
    q_ids = lax.dynamic_index_in_dim(draft.q.ids, child, 1, keepdims=False)
    q_probs = lax.dynamic_index_in_dim(draft.q.probs, child, 1, keepdims=False)
    p = sampling.law(row, params)
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
  return _accepted(tokens, num_accepted)


def _accepted(tokens, num_accepted):
  path = jnp.arange(tokens.shape[1], dtype=jnp.int32)
  return Accepted(jnp.broadcast_to(path, tokens.shape), num_accepted, tokens)


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
