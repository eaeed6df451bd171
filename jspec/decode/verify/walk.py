# SPDX-License-Identifier: MIT
"""Rule R1: deterministic drafts, any tree.

The drafts are a function of the committed prefix. At every visited node z is
drawn from the target's law there, with the key of z's absolute position; the
live child that holds z is visited next, and where there is none z ends the
round. So z is what plain decoding draws at that position with the same seed,
whatever was drafted: the tree says only how far one round gets.

At temperature 0 z is the argmax, and the walk is the longest match.
"""

from collections.abc import Callable

import jax.numpy as jnp
from jax import lax

from jspec import packing as packing_lib
from jspec import tree
from jspec.decode import keys, sampling
from jspec.decode.verify import accepted, nodes
from jspec.typing import Array, Float, Int

# The uniforms of every row for its decision at a depth (0: behind the anchor).
UniformsAt = Callable[[Int[Array, '']], Float[Array, 'B']]


def accept(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """Follows what the target draws for as long as it was drafted."""
  uniforms_at = _uniforms_at(params, anchor_positions)
  return accept_with(logits, draft, params, uniforms_at)


def accept_packed(
  logits: Float[Array, 'Q V'],
  packing: packing_lib.Packing,
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """`accept` with the logits of all rows on one axis; nothing is unpacked."""
  uniforms_at = _uniforms_at(params, anchor_positions)

  def decide(node, depth):
    row = packing.take(logits, node)
    return sampling.sample(row, params, uniforms_at(depth))

  def matched():
    best = packing.to_rows(sampling.argmax(logits))
    return _follow(draft, lambda node, depth: nodes.take(best, node))

  return lax.cond(
    jnp.any(params.temperature > 0), lambda: _follow(draft, decide), matched
  )


def accept_with(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  uniforms_at: UniformsAt,
) -> accepted.Accepted:
  """`accept` with the randomness given, so that it can be enumerated."""

  def decide(node, depth):
    row = nodes.take(logits, node)
    return sampling.sample(row, params, uniforms_at(depth))

  return lax.cond(
    jnp.any(params.temperature > 0),
    lambda: _follow(draft, decide),
    lambda: match(logits, draft),
  )


def match(
  logits: Float[Array, 'B T V'], draft: tree.Draft
) -> accepted.Accepted:
  """The longest match with the argmax: every rule at temperature 0.

  One pass over all nodes and then integers; it beats a walk, whose steps cost
  more than an argmax each.
  """
  num_rows, num_nodes = draft.tokens.shape
  best = sampling.argmax(logits.reshape(num_rows * num_nodes, -1))
  best = best.reshape(num_rows, num_nodes)
  return _follow(draft, lambda node, depth: nodes.take(best, node))


def _uniforms_at(params, anchor_positions):
  return lambda depth: keys.uniforms(
    params.seeds, anchor_positions + 1 + depth, keys.ACCEPT
  )


def _follow(draft, decide):
  """Goes down the trees with `decide(node, depth)` until every row stops."""
  num_rows, num_nodes = draft.tokens.shape
  zeros = jnp.zeros((num_rows,), jnp.int32)

  def step(state):
    depth, node, is_active, path, tokens, num_accepted = state
    token = decide(node, depth)
    child = nodes.child_with(draft, node, token)
    token = jnp.where(is_active, token, 0).astype(jnp.int32)
    tokens = lax.dynamic_update_index_in_dim(tokens, token, depth, axis=1)
    is_active = is_active & (child < num_nodes)
    child = jnp.where(is_active, child, 0)
    # Behind the last node nothing is drafted: the write falls outside.
    path = path.at[:, depth + 1].set(child, mode='drop')
    return depth + 1, child, is_active, path, tokens, num_accepted + is_active

  def is_running(state):
    return jnp.any(state[2]) & (state[0] < num_nodes)

  _, _, _, path, tokens, num_accepted = lax.while_loop(
    is_running,
    step,
    (
      jnp.int32(0),
      zeros,
      jnp.ones((num_rows,), bool),
      jnp.zeros((num_rows, num_nodes), jnp.int32),
      jnp.zeros((num_rows, num_nodes), jnp.int32),
      zeros,
    ),
  )
  return accepted.Accepted(path, num_accepted, tokens)
