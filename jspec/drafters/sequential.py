# SPDX-License-Identifier: MIT
"""Chains and trees of drafters whose next token depends on the ones before.

A drafter is three functions (`Source`):

  root(count)                     candidates behind the anchor
  start(width, num_levels)        its state before the first level
  step(state, beam, count)        candidates behind the nodes of a level

which is all that `trees` wants to know: token heads and the selector walk the
slots of a block that has run (`block_steps`), EAGLE-3 and MTP are run on their
own output (`recurrent`). Four kinds of draft come of it: the greedy chain; a
chain drawn from the Q most probable tokens at the row's temperature, with that
exact law; the best nodes that a beam saw (`trees.expand_rerank`); a tree of
fixed shape with siblings drawn without replacement (`trees.grow`).

Confidence is the node's probability at temperature 1 where drafts are a
function of the prefix. In a drawn chain it is the largest probability behind
the parent, or what `confidence_of` says, neither of which looks at the token
drawn; a drawn tree has fixed ones.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.drafters import pick
from jspec.trees import candidates, draws, expand_rerank, expansion, grow
from jspec.typing import Array, Float, Int, Key, PyTree

# (depth, tokens [B]) -> confidence [B] of the draft behind these tokens
ConfidenceOf = Callable[[Int[Array, ''], Int[Array, 'B']], Float[Array, 'B']]


class Source(NamedTuple):
  """A drafter as proposals see it.

  Attributes:
    root: `count` candidates [B, Q] behind the anchor.
    start: the state before the first level, for beams of `width` nodes at so
      many levels.
    step: runs the drafter on a beam, for `count` candidates a node.
  """

  root: Callable[[int], candidates.Candidates]
  start: Callable[[int, int], PyTree]
  step: Callable[
    [PyTree, expansion.Beam, int], tuple[PyTree, candidates.Candidates]
  ]


def propose(
  source: Source,
  anchor: Int[Array, 'B'],
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  *,
  depth: int,
  size: int,
  width: int,
  support: int,
  confidence_of: ConfidenceOf | None = None,
) -> tree.Draft:
  """The kind of draft that the options ask for.

  Args:
    source: the drafter.
    anchor: node 0.
    temperature: of every row; None for a function of the committed prefix.
    keys: of the rows, where there is a temperature.
    depth: G, of the deepest draft token.
    size: draft tokens of a tree; 0 for a chain.
    width: of the beam that looks for the best tree.
    support: Q, tokens of the law of a drawn draft.
    confidence_of: of a chain, see above.
  """
  if not size:
    return chain(
      source, anchor, temperature, keys, depth, support, confidence_of
    )
  if temperature is None:
    return _best_tree(source, anchor, depth, size, min(width, size))
  return _drawn_tree(source, anchor, temperature, keys, depth, size, support)


def depends(size: int) -> str:
  """What the confidence of a sampled draft looks at (`base.DEPENDS`).

  Args:
    size: as of `propose`.
  """
  return 'prefix' if size else 'before'


def chain(
  source: Source,
  anchor: Int[Array, 'B'],
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  num_drafts: int,
  support: int,
  confidence_of: ConfidenceOf | None = None,
) -> tree.Draft:
  """One token after the other; `step` is called `num_drafts - 1` times."""
  rows = anchor.shape[0]
  num_levels = max(num_drafts - 1, 1)
  words = tree.chain_words(rows, num_levels)
  count = 1 if temperature is None else support

  def draw(behind, depth, before):
    """The node behind `before`: its token, confidence and law."""
    tokens, law = draws.children(
      behind, depth[None], 1, temperature, keys, 'independent'
    )
    sure = jnp.exp(behind.log_probs[:, 0, 0])
    if confidence_of is not None:
      sure = confidence_of(depth, before)
    law = None if law is None else tuple(x[:, 0] for x in law)
    return tokens[:, 0, 0].astype(anchor.dtype), sure, law

  def deepen(carry, level):
    state, token = carry
    beam = expansion.Beam(
      tokens=token[:, None],
      parents=jnp.zeros((rows, 1), jnp.int32),
      ancestors=jax.lax.dynamic_slice_in_dim(words, level, 1, axis=1),
      is_live=jnp.ones((rows, 1), bool),
      level=level,
    )
    state, behind = source.step(state, beam, count)
    node = draw(behind, level + 1, token)
    return (state, node[0]), node

  root = candidates.Candidates(*(x[:, None] for x in source.root(count)))
  first = draw(root, jnp.int32(0), anchor)
  carry = (source.start(1, num_levels), first[0])
  levels = jnp.arange(num_drafts - 1, dtype=jnp.int32)
  _, rest = jax.lax.scan(deepen, carry, levels)

  def joined(one, more):
    return jnp.concatenate([one[:, None], jnp.moveaxis(more, 0, 1)], axis=1)

  return pick.as_chain(anchor, *jax.tree.map(joined, first, rest))


def _best_tree(source, anchor, depth, size, width) -> tree.Draft:
  """The best `size` of what a beam of `width` nodes saw (EAGLE-2).

  A function of the committed prefix.
  """
  draft, _ = expand_rerank.build(
    functools.partial(source.step, count=width),
    source.start(width, max(depth - 1, 1)),
    source.root(width),
    anchor,
    num_nodes=size + 1,
    width=width,
    num_steps=depth - 1,
  )
  return draft


def _drawn_tree(
  source, anchor, temperature, keys, depth, size, support
) -> tree.Draft:
  """A tree of `pick.shape`, siblings drawn without replacement.

  Its shape and its confidence are fixed, so that drawn drafts stay lossless
  however the draft is cut.
  """
  root = source.root(support)
  form = pick.shape(size, root.ids.shape[-1], depth)
  draft, _ = grow.build(
    form,
    functools.partial(source.step, count=support),
    source.start(grow.beam_width(form), max(form.depth - 1, 1)),
    root,
    anchor,
    temperature,
    keys,
  )
  return pick.padded(draft, size + 1)
