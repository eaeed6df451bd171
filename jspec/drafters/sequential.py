# SPDX-License-Identifier: MIT
"""Proposals of a block whose slots depend on the token before.

The backbone has run: `hidden` [B, G, D] are the states of the slots that
predict depth 1 .. G. What is left for every slot is a cheap step that needs the
token before,

  candidates, carry = step(depth, tokens, carry)       depth 0 behind the anchor

made of a token head (`token_head`) or the selector. Chains walk it slot by
slot; trees run it on a beam of nodes (`trees.expand_rerank`), or on the nodes
of a fixed shape when drafts are sampled (`trees.grow`).

Confidence of a chain is the largest probability of the slot given the tokens
before, or what `confidence_of` says; it never looks at the token drawn there.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.drafters import pick
from jspec.trees import candidates, expand_rerank, expansion, grow, sequoia
from jspec.typing import Array, Float, Int, Key, PyTree

# (depth, tokens [B, W], carry [B, W, ...], how many) -> candidates, carry
Step = Callable[
  [Int[Array, ''], Int[Array, 'B W'], PyTree, int],
  tuple[candidates.Candidates, PyTree],
]
# (depth, tokens [B]) -> confidence [B] of the draft behind these tokens
ConfidenceOf = Callable[[Int[Array, ''], Int[Array, 'B']], Float[Array, 'B']]


def chain(
  step: Step,
  start: PyTree,
  anchor: Int[Array, 'B'],
  num_drafts: int,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  support: int,
  confidence_of: ConfidenceOf | None = None,
) -> tree.Draft:
  """Drafts slot by slot; sampled ones come with their exact law."""
  rows = anchor.shape[0]
  count = 1 if temperature is None else support

  def walk(carry, depth):
    token, carry = carry
    found, carry = step(depth, token[:, None], carry, count)
    log_probs, ids = found.log_probs[:, 0], found.ids[:, 0]
    sure = jnp.exp(log_probs[:, 0])
    if confidence_of is not None:
      sure = confidence_of(depth, token)
    if temperature is None:
      token, law = ids[:, 0], ()
    else:
      probs = pick.law(log_probs, temperature)
      drawn = jax.vmap(pick.uniforms, (0, None))(keys, depth + 1)
      index = pick.draw(probs, drawn)[:, None]
      token, law = jnp.take_along_axis(ids, index, axis=1)[:, 0], (ids, probs)
    token = token.astype(anchor.dtype)
    return (token, carry), (token, sure, law)

  depths = jnp.arange(num_drafts)
  _, found = jax.lax.scan(walk, (anchor, start), depths)
  tokens, sure, law = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), found)
  q = None
  if law:
    nothing = ((0, 0), (0, 1), (0, 0))  # The last node has no child.
    ids, probs = (jnp.pad(x, nothing) for x in law)
    q = tree.SparseLaw(ids, probs, draws='independent')
  return tree.Draft(
    tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
    parents=tree.chain_parents(rows, num_drafts + 1),
    num_nodes=jnp.full((rows,), num_drafts + 1, jnp.int32),
    confidence=jnp.concatenate([jnp.ones((rows, 1)), sure], axis=1),
    q=q,
  )


def best_tree(
  step: Step,
  start: PyTree,
  anchor: Int[Array, 'B'],
  num_drafts: int,
  size: int,
  width: int,
) -> tree.Draft:
  """The best `size` nodes that a beam of `width` saw, `num_drafts` deep."""
  width = min(width, size)
  root, carry = _root(step, start, anchor, width)
  draft, _ = expand_rerank.build(
    _on_beam(step, width),
    _spread(carry, width),
    root,
    anchor,
    num_nodes=size + 1,
    width=width,
    num_steps=num_drafts - 1,
  )
  return draft


def sampled_tree(
  step: Step,
  start: PyTree,
  anchor: Int[Array, 'B'],
  num_drafts: int,
  size: int,
  temperature: Float[Array, 'B'],
  keys: Key[Array, 'B'],
  support: int,
) -> tree.Draft:
  """A Sequoia tree of `size` tokens, siblings drawn without replacement."""
  num_ranks = min(size, support)
  topology = sequoia.build(
    pick.FIRST_CHILD * pick.NEXT_CHILD ** np.arange(num_ranks),
    size + 1,
    num_drafts,
  )
  root, carry = _root(step, start, anchor, support)
  width = max(grow.beam_width(topology), 1)
  draft, _ = grow.build(
    topology,
    _on_beam(step, support),
    _spread(carry, width),
    root,
    anchor,
    temperature,
    keys,
  )
  return pick.padded(draft, size + 1)


def _root(step, start, anchor, count):
  root, carry = step(jnp.asarray(0), anchor[:, None], start, count)
  return candidates.Candidates(*(x[:, 0] for x in root)), carry


def _spread(carry, width):
  """The anchor's carry [B, 1, ...] for a beam whose parents are all slot 0."""
  return jax.tree.map(lambda x: jnp.repeat(x, width, axis=1), carry)


def _on_beam(step, count) -> expansion.Step:
  """The step as tree builders call it; what is carried follows the parents."""

  def run(carry, beam):
    carry = jax.tree.map(
      lambda x: jnp.take_along_axis(x, beam.parents[:, :, None], axis=1), carry
    )
    found, carry = step(beam.level + 1, beam.tokens, carry, count)
    return carry, found

  return run
