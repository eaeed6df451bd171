# SPDX-License-Identifier: MIT
"""What a rule decides before the last token is drawn, and the drawing of it.

A rule with sampled drafts tests nodes, each with a chance of its own, stops at
one of them and says what law the token behind it has. Keeping that apart from
the draw lets a test follow every branch and add up exact probabilities.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jspec import tree
from jspec.decode import keys, sampling
from jspec.decode.verify import accepted, nodes, residual, walk
from jspec.typing import Array, Bool, Float, Int


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Decision:
  """Where each row stops.

  Attributes:
    path: as in `Accepted`.
    num_accepted: as in `Accepted`.
    weights: the law of the token behind the path, up to a factor.
    chances: the chance with which each node passed its test; -1 where a node
      was not tested. For tests; costs nothing where it is not used.
  """

  path: Int[Array, 'B T']
  num_accepted: Int[Array, 'B']
  weights: Float[Array, 'B V']
  chances: Float[Array, 'B T']


# From logits, draft, parameters and the uniforms [B, T] of the nodes' tests.
Decide = Callable[..., Decision]


def accept(
  decide: Decide,
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  anchor_positions: Int[Array, 'B'],
) -> accepted.Accepted:
  """Decides with the round's own random numbers."""
  num_nodes = draft.tokens.shape[1]
  tests = keys.node_uniforms(
    params.seeds, anchor_positions, keys.TEST, num_nodes
  )
  bonus = keys.uniforms(params.seeds, anchor_positions, keys.BONUS)
  return accept_with(decide, logits, draft, params, tests, bonus)


def accept_with(
  decide: Decide,
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  tests: Float[Array, 'B T'],
  bonus: Float[Array, 'B'],
) -> accepted.Accepted:
  """`accept` with the randomness given.

  Greedy rows keep the longest match with the argmax, even if a sibling that
  could not have been drawn at temperature 0 makes it longer.
  """
  is_greedy = params.temperature <= 0

  def sampled():
    decision = decide(logits, draft, params, tests)
    token = sampling.draw(decision.weights, bonus)
    drawn = _commit(draft, decision, token)
    matched = lax.cond(
      jnp.any(is_greedy), lambda: walk.match(logits, draft), lambda: drawn
    )

    def choose(greedy, other):
      rows = is_greedy.reshape(-1, *(1,) * (greedy.ndim - 1))
      return jnp.where(rows, greedy, other)

    return jax.tree.map(choose, matched, drawn)

  return lax.cond(
    jnp.all(is_greedy), lambda: walk.match(logits, draft), sampled
  )


def open_node(
  logits: Float[Array, 'B T V'],
  draft: tree.Draft,
  params: sampling.Sampling,
  node: Int[Array, 'B'],
  has_child: Bool[Array, 'B'],
) -> tuple[Float[Array, 'B V'], residual.Residual]:
  """The target's law at a node of each row, and what its children meet."""
  p = sampling.law(nodes.take(logits, node), params)
  probs = nodes.take(draft.q.probs, node)
  probs = jnp.where(has_child[:, None], probs, 0.0)
  return p, residual.start(p, nodes.take(draft.q.ids, node), probs)


def _commit(draft, decision, token):
  """The drafts along the path, then the token."""
  step = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  num_accepted = decision.num_accepted[:, None]
  drafted = jnp.take_along_axis(draft.tokens, decision.path, axis=1)
  drafted = jnp.roll(drafted, -1, axis=1)
  tokens = jnp.where(step < num_accepted, drafted, 0)
  tokens = jnp.where(step == num_accepted, token[:, None], tokens)
  path = jnp.where(step <= num_accepted, decision.path, 0)
  return accepted.Accepted(path, decision.num_accepted, tokens)
