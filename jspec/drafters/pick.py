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
    columns, q = first_at(logits, top), None
  else:
    values, ids = jax.lax.top_k(logits, min(support, logits.shape[-1]))
    probs = law(values, temperature)
    drawn = jax.vmap(uniforms, (0, None))(keys, jnp.arange(1, num_drafts + 1))
    columns = jnp.take_along_axis(ids, draw(probs, drawn)[..., None], -1)[
      ..., 0
    ]
    ids = vocab.to_target(ids, draft_token_ids)
    nothing = ((0, 0), (0, 1), (0, 0))  # The last node has no child.
    q = tree.SparseLaw(
      jnp.pad(ids, nothing), jnp.pad(probs, nothing), draws='independent'
    )
  tokens = vocab.to_target(columns, draft_token_ids).astype(anchor.dtype)
  return tree.Draft(
    tokens=jnp.concatenate([anchor[:, None], tokens], axis=1),
    parents=tree.chain_parents(rows, num_drafts + 1),
    num_nodes=jnp.full((rows,), num_drafts + 1, jnp.int32),
    confidence=jnp.concatenate([jnp.ones((rows, 1)), confidence], axis=1),
    q=q,
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
  return padded(draft, size + 1)


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


def best(logits: Float[Array, '*batch Vd']) -> candidates.Candidates:
  """The most probable column alone; faster than `candidates.top(logits, 1)`."""
  top = jnp.max(logits, axis=-1, keepdims=True)
  total = jnp.sum(jnp.exp(logits - top), axis=-1, keepdims=True)
  ids = first_at(logits, top)[..., None]
  return candidates.Candidates(candidates.clean(-jnp.log(total)), ids)


def first_at(
  logits: Float[Array, '*batch Vd'], top: Float[Array, '*batch 1']
) -> Int[Array, '*batch']:
  """Lowest column that reaches the maximum `top`.

  A plain minimum over column numbers: XLA's argmax reduces pairs, which its
  CPU back end does not vectorise.
  """
  size = logits.shape[-1]
  columns = jnp.arange(size, dtype=jnp.int32)
  return jnp.min(jnp.where(logits >= top, columns, size - 1), axis=-1)


def law(
  values: Float[Array, 'B *batch Q'], temperature: Float[Array, 'B']
) -> Float[Array, 'B *batch Q']:
  """Probabilities of candidates, best first, at each row's temperature.

  softmax(values / temperature), for logits or log-probabilities alike; a row at
  temperature 0 takes the first.
  """
  temperature = temperature.reshape(-1, *[1] * (values.ndim - 1))
  is_greedy = temperature <= 0
  probs = jax.nn.softmax(values / jnp.where(is_greedy, 1.0, temperature), -1)
  first = jnp.zeros_like(probs).at[..., 0].set(1.0)
  return jnp.where(is_greedy, first, probs)


def uniforms(
  key: Key[Array, ''], depths: Int[Array, '*batch']
) -> Float[Array, '*batch']:
  """One uniform a depth; the row's key makes them the same in any batch."""

  def one(depth):
    return jax.random.uniform(jax.random.fold_in(key, depth))

  return jnp.vectorize(one)(depths)


def draw(
  probs: Float[Array, '*batch Q'], uniform: Float[Array, '*batch']
) -> Int[Array, '*batch']:
  """Which candidate a uniform picks."""
  cumulative = jnp.cumsum(probs, axis=-1)
  below = cumulative <= uniform[..., None] * cumulative[..., -1:]
  # Rounding must not step onto an entry without probability.
  last = jnp.sum(probs > 0, axis=-1) - 1
  return jnp.minimum(jnp.sum(below, axis=-1), last)
