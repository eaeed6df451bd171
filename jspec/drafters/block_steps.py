# SPDX-License-Identifier: MIT
"""What a block drafter's slots say once the token before them is known.

`sequential` walks these steps; three kinds:

  selector     the slot's K best tokens, scored against the token before
  token head   logits of the state that the head makes of slot and token
  neither      the slot's marginal, whatever the token (a drafter that has only
               a confidence head)
"""

from typing import Any

import jax
import jax.numpy as jnp

from jspec.drafters import pick, sequential, vocab
from jspec.trees import candidates
from jspec.typing import Array, Float, PyTree


def build(
  drafter: Any, hidden: Float[Array, 'B G D']
) -> tuple[sequential.Step, PyTree]:
  """The step of a `BlockDrafter` over its slots' states, and the first carry.

  Whatever does not depend on the token is computed here, for all slots.
  """
  if drafter.selector is not None:
    return _selecting(drafter, hidden), None
  if drafter.token_head is None:
    return _independent(drafter, hidden), None
  head, token_head = drafter.head[...], drafter.token_head
  base = token_head.base(hidden, head)

  def step(depth, tokens, carry, count):
    of_slot = _of_slot(hidden, depth, tokens)
    embedded = drafter.embedding[...][tokens]
    states, carry = token_head.states(of_slot, embedded, tokens, carry)
    known = None if base is None else _of_slot(base, depth, tokens)
    logits = token_head.logits(states, known, head)
    return _candidates(drafter, logits, count), carry

  return step, token_head.start(hidden[:, :1])


def _independent(drafter, hidden):
  logits = hidden @ drafter.head[...]

  def step(depth, tokens, carry, count):
    found = _candidates(drafter, logits[:, depth], count)
    return candidates.Candidates(
      *(
        jnp.broadcast_to(x[:, None], (*tokens.shape, x.shape[-1]))
        for x in found
      )
    ), carry

  return step


def _selecting(drafter, hidden):
  selector = drafter.selector
  unary = candidates.top(hidden @ drafter.head[...], selector.size)

  def step(depth, tokens, carry, count):
    of_slot, log_probs, columns = (
      _of_slot(x, depth, tokens) for x in (hidden, *unary)
    )
    scores = selector.scores(of_slot, log_probs, columns, tokens)
    values, place = jax.lax.top_k(scores, min(count, scores.shape[-1]))
    total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    ids = jnp.take_along_axis(columns, place, axis=-1)
    ids = vocab.to_target(ids, drafter.token_ids())
    return candidates.Candidates(candidates.clean(values - total), ids), carry

  return step


def _of_slot(x, depth, tokens):
  """Slot `depth` of x [B, G, ...], for every node of the beam."""
  one = x[:, depth][:, None]
  return jnp.broadcast_to(one, (*tokens.shape, x.shape[-1]))


def _candidates(drafter, logits, count):
  logits = logits.astype(jnp.float32)
  found = pick.best(logits) if count == 1 else candidates.top(logits, count)
  return found._replace(ids=vocab.to_target(found.ids, drafter.token_ids()))
