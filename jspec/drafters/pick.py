# SPDX-License-Identifier: MIT
"""From the logits of parallel slots to a chain or a tree of draft tokens.

Without a temperature the drafts are the argmax of every slot (rule R1: they are
a function of the prefix). With one they are drawn from the Q most probable
tokens of softmax(logits / temperature), renormalised, and that law goes along
(rule R2 needs exactly the law the tokens came from; `trees.draws`).

Confidence is the largest probability of the slot at temperature 1. It does not
look at the token drawn, so cutting a sampled draft by it anticipates nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.drafters import vocab
from jspec.trees import candidates, ddtree, draws, fill, sequoia, topology
from jspec.typing import Array, Float, Int, Key

# Acceptance by rank that shapes a sampled tree: p_j = FIRST * NEXT ** (j - 1),
# about what a block drafter has at temperature 1.
_FIRST_CHILD, _NEXT_CHILD = 0.5, 0.4


def chain(
  logits: Float[Array, 'B G Vd'],
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  support: int,
) -> tree.Draft:
  """Drafts one token a slot behind the anchor; `support` is Q."""
  found = top(logits, draft_token_ids, 1 if temperature is None else support)
  parent = jnp.arange(logits.shape[1])
  tokens, law = draws.children(
    found, parent, 1, temperature, keys, 'independent'
  )
  confidence = jnp.exp(found.log_probs[..., 0])
  return as_chain(anchor, tokens[..., 0], confidence, law)


def best_tree(
  logits: Float[Array, 'B G Vd'],
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  size: int,
  support: int,
) -> tree.Draft:
  """The `size` most probable prefixes of the slots' marginals (DDTree).

  A function of the committed prefix whatever the temperature.
  """
  found = top(logits, draft_token_ids, min(size, support))
  return ddtree.build(found, anchor, size + 1)


def sampled_tree(
  logits: Float[Array, 'B G Vd'],
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'],
  keys: Key[Array, 'B'],
  size: int,
  support: int,
) -> tree.Draft:
  """A tree of `shape`, siblings drawn without replacement.

  Its shape and its confidence are fixed, so sampled drafts stay lossless
  however the draft is cut.
  """
  found = top(logits, draft_token_ids, support)
  form = shape(size, found.ids.shape[-1], logits.shape[1])
  draft = fill.from_marginals(form, found, anchor, temperature, keys)
  return padded(draft, size + 1)


def top(
  logits: Float[Array, '*batch Vd'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  count: int,
) -> candidates.Candidates:
  """The `count` most probable tokens, by their target ids."""
  found = _best(logits) if count == 1 else candidates.top(logits, count)
  return found._replace(ids=vocab.to_target(found.ids, draft_token_ids))


def shape(size: int, num_candidates: int, depth: int) -> topology.Topology:
  """Sequoia's tree of `size` draft tokens, or fewer if depth uses them up."""
  ranks = np.arange(min(size, num_candidates))
  return sequoia.build(_FIRST_CHILD * _NEXT_CHILD**ranks, size + 1, depth)


def padded(draft: tree.Draft, num_nodes: int) -> tree.Draft:
  """A draft with room for so many nodes, where its shape used up fewer."""
  missing = num_nodes - draft.tokens.shape[1]
  return jax.tree.map(
    lambda x: (
      jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
      if x.ndim > 1
      else x
    ),
    draft,
  )


def as_chain(
  anchor: Int[Array, 'B'],
  tokens: Int[Array, 'B G'],
  confidence: Float[Array, 'B G'],
  law: draws.Law | None,
) -> tree.Draft:
  """A chain behind the anchor.

  Args:
    anchor: node 0.
    tokens: drafts of depth 1 to G.
    confidence: theirs.
    law: ids and probabilities each was drawn from; None if it was not.
  """
  rows, num_drafts = tokens.shape
  if law is not None:
    nothing = ((0, 0), (0, 1), (0, 0))  # The last node has no child.
    law = tree.SparseLaw(
      *(jnp.pad(x, nothing) for x in law), draws='independent'
    )
  return tree.Draft(
    tokens=jnp.concatenate(
      [anchor[:, None], tokens.astype(anchor.dtype)], axis=1
    ),
    parents=tree.chain_parents(rows, num_drafts + 1),
    num_nodes=jnp.full((rows,), num_drafts + 1, jnp.int32),
    confidence=jnp.concatenate([jnp.ones((rows, 1)), confidence], axis=1),
    q=law,
  )


def _best(logits: Float[Array, '*batch Vd']) -> candidates.Candidates:
  """The most probable column, the lowest of equal ones.

  Faster than `candidates.top(logits, 1)`: XLA's argmax reduces pairs, which its
  CPU back end does not vectorise; a minimum over column numbers it does.
  """
  logits = logits.astype(jnp.float32)
  most = jnp.max(logits, axis=-1, keepdims=True)
  total = jnp.sum(jnp.exp(logits - most), axis=-1, keepdims=True)
  size = logits.shape[-1]
  columns = jnp.arange(size, dtype=jnp.int32)
  first = jnp.min(
    jnp.where(logits >= most, columns, size - 1), axis=-1, keepdims=True
  )
  return candidates.Candidates(candidates.clean(-jnp.log(total)), first)
