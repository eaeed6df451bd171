# SPDX-License-Identifier: MIT
"""What a block drafter's slots say once the token before them is known.

The backbone has run: `hidden` [B, G, D] are the states of the slots that
predict depth 1 .. G. What is left for every slot is a cheap step that needs the
token before,

  candidates, carry = slot(depth, tokens, carry, count)    depth 0: the anchor

of one of three kinds; `sequential` makes chains and trees of it:

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
from jspec.typing import Array, Float, Int


def build(
  drafter: Any, hidden: Float[Array, 'B G D'], anchor: Int[Array, 'B']
) -> sequential.Source:
  """The slots of a `BlockDrafter` as proposals see them.

  Whatever does not depend on the token is computed here, for all slots.
  """
  first = None
  if drafter.selector is not None:
    slot = _selecting(drafter, hidden)
  elif drafter.token_head is not None:
    slot = _with_head(drafter, hidden)
    first = drafter.token_head.start(hidden[:, :1])
  else:
    slot = _independent(drafter, hidden)

  def behind_anchor(count):
    return slot(jnp.int32(0), anchor[:, None], first, count)

  def root(count):
    return candidates.Candidates(*(x[:, 0] for x in behind_anchor(count)[0]))

  def start(width, num_levels):
    del num_levels  # The carry goes by slot of the beam, not by scratch row.
    _, carry = behind_anchor(1)
    return jax.tree.map(lambda x: jnp.repeat(x, width, axis=1), carry)

  def step(carry, beam, count):
    carry = jax.tree.map(
      lambda x: jnp.take_along_axis(x, beam.parents[:, :, None], axis=1), carry
    )
    found, carry = slot(beam.level + 1, beam.tokens, carry, count)
    return carry, found

  return sequential.Source(root, start, step)


def _with_head(drafter, hidden):
  head, token_head = drafter.head[...], drafter.token_head
  base = token_head.base(hidden, head)

  def slot(depth, tokens, carry, count):
    of_slot = _of_slot(hidden, depth, tokens)
    embedded = drafter.embed(tokens)
    states, carry = token_head.states(of_slot, embedded, tokens, carry)
    known = None if base is None else _of_slot(base, depth, tokens)
    logits = token_head.logits(states, known, head)
    return pick.top(logits, drafter.token_ids(), count), carry

  return slot


def _independent(drafter, hidden):
  logits = hidden @ drafter.head[...]

  def slot(depth, tokens, carry, count):
    found = pick.top(logits[:, depth], drafter.token_ids(), count)
    return candidates.Candidates(
      *(
        jnp.broadcast_to(x[:, None], (*tokens.shape, x.shape[-1]))
        for x in found
      )
    ), carry

  return slot


def _selecting(drafter, hidden):
  selector = drafter.selector
  unary = candidates.top(hidden @ drafter.head[...], selector.size)

  def slot(depth, tokens, carry, count):
    of_slot, log_probs, columns = (
      _of_slot(x, depth, tokens) for x in (hidden, *unary)
    )
    scores = selector.scores(of_slot, log_probs, columns, tokens)
    values, place = jax.lax.top_k(scores, min(count, scores.shape[-1]))
    total = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
    ids = jnp.take_along_axis(columns, place, axis=-1)
    ids = vocab.to_target(ids, drafter.token_ids())
    return candidates.Candidates(candidates.clean(values - total), ids), carry

  return slot


def _of_slot(x, depth, tokens):
  """Slot `depth` of x [B, G, ...], for every node of the beam."""
  one = x[:, depth][:, None]
  return jnp.broadcast_to(one, (*tokens.shape, x.shape[-1]))
