# SPDX-License-Identifier: MIT
"""From the logits of parallel slots to a chain or a tree of draft tokens.

Without a temperature the drafts are the argmax of every slot (rule R1: they are
a function of the prefix). With one they are drawn from the Q most probable
tokens of softmax(logits / temperature), renormalised, and that law goes along
(rule R2 needs exactly the law the tokens came from).

Confidence is the largest probability of the slot at temperature 1. It does not
look at the token drawn, so cutting a sampled draft by it anticipates nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.drafters import vocab
from jspec.trees import candidates, ddtree, fill, sequoia
from jspec.typing import Array, Float, Int, Key

# Acceptance by rank that shapes a sampled tree: p_j = FIRST * NEXT ** (j - 1),
# about what a block drafter has at temperature 1.
FIRST_CHILD, NEXT_CHILD = 0.5, 0.4


def chain(
  logits: Float[Array, 'B G Vd'],
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  support: int,
) -> tree.Draft:
  """Drafts one token a slot behind the anchor; `support` is Q."""
  rows, num_drafts, _ = logits.shape
  top = jnp.max(logits, axis=-1, keepdims=True)
  confidence = 1.0 / jnp.sum(jnp.exp(logits - top), axis=-1)
  if temperature is None:
    columns, law = _first_at(logits, top), None
  else:
    columns, ids, probs = _draw(logits, temperature, keys, support)
    ids = vocab.to_target(ids, draft_token_ids)
    nothing = ((0, 0), (0, 1), (0, 0))  # The last node has no child.
    law = tree.SparseLaw(
      jnp.pad(ids, nothing), jnp.pad(probs, nothing), draws='independent'
    )
  tokens = vocab.to_target(columns, draft_token_ids).astype(anchor.dtype)
  return tree.Draft(
    tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
    parents=tree.chain_parents(rows, num_drafts + 1),
    num_nodes=jnp.full((rows,), num_drafts + 1, jnp.int32),
    confidence=jnp.concatenate([jnp.ones((rows, 1)), confidence], axis=1),
    q=law,
  )


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
  best = candidates.top(logits, min(size, support))
  best = best._replace(ids=vocab.to_target(best.ids, draft_token_ids))
  return ddtree.build(best, anchor, size + 1)


def sampled_tree(
  logits: Float[Array, 'B G Vd'],
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'],
  keys: Key[Array, 'B'],
  size: int,
  support: int,
) -> tree.Draft:
  """A Sequoia tree of `size` tokens, siblings drawn without replacement.

  Its shape and its confidence are fixed, so sampled drafts stay lossless
  however the draft is cut.
  """
  num_ranks = min(size, support, logits.shape[-1])
  topology = sequoia.build(
    FIRST_CHILD * NEXT_CHILD ** np.arange(num_ranks), size + 1, logits.shape[1]
  )
  best = candidates.top(logits, support)
  best = best._replace(ids=vocab.to_target(best.ids, draft_token_ids))
  draft = fill.from_marginals(topology, best, anchor, temperature, keys)
  missing = size + 1 - topology.num_nodes  # Where depth and ranks are used up.
  return jax.tree.map(
    lambda x: (
      jnp.pad(x, ((0, 0), (0, missing)) + ((0, 0),) * (x.ndim - 2))
      if x.ndim > 1
      else x
    ),
    draft,
  )


def _first_at(logits, top):
  """Lowest column that reaches the maximum.

  A plain minimum over column numbers: XLA's argmax reduces pairs, which its
  CPU back end does not vectorise.
  """
  size = logits.shape[-1]
  columns = jnp.arange(size, dtype=jnp.int32)
  return jnp.min(jnp.where(logits >= top, columns, size - 1), axis=-1)


def _draw(logits, temperature, keys, support):
  """Columns drawn [B G], support columns and their probabilities [B G Q]."""
  num_drafts = logits.shape[1]
  values, ids = jax.lax.top_k(logits, min(support, logits.shape[-1]))
  is_greedy = (temperature <= 0)[:, None, None]
  scale = jnp.where(is_greedy, 1.0, temperature[:, None, None])
  probs = jax.nn.softmax(values / scale, axis=-1)
  first = jnp.zeros_like(probs).at[..., 0].set(1.0)
  probs = jnp.where(is_greedy, first, probs)

  def uniforms(key):
    depths = jnp.arange(1, num_drafts + 1)
    folded = jax.vmap(lambda depth: jax.random.fold_in(key, depth))(depths)
    return jax.vmap(jax.random.uniform)(folded)

  drawn = jax.vmap(uniforms)(keys)[..., None]
  cumulative = jnp.cumsum(probs, axis=-1)
  below = cumulative <= drawn * cumulative[..., -1:]
  # Rounding must not step onto an entry without probability.
  last = jnp.sum(probs > 0, axis=-1) - 1
  picked = jnp.minimum(jnp.sum(below, axis=-1), last)
  columns = jnp.take_along_axis(ids, picked[..., None], axis=-1)[..., 0]
  return columns, ids, probs
