# SPDX-License-Identifier: MIT
"""What of a proposal can be verified."""

import dataclasses

import jax.numpy as jnp

from jspec import tree
from jspec.typing import Array, Bool, Int


def fit(draft: tree.Draft, remaining: Int[Array, 'B']) -> tree.Draft:
  """Cuts drafts to what a row may still emit.

  A row that may emit r more tokens never keeps a node of depth r or more (the
  last node's sample is the r-th token), so nodes behind the last shallower one
  are not scored; accepted paths stay inside the context because what a round
  emits is cut to r. Rows that are finished need the anchor only, and must not
  make the others' round larger.
  """
  depth = tree.depths(draft.parents)
  node = jnp.arange(1, depth.shape[1] + 1, dtype=jnp.int32)
  is_useful = depth < jnp.maximum(remaining, 1)[:, None]
  num_useful = jnp.max(jnp.where(is_useful, node, 1), axis=1)
  return dataclasses.replace(
    draft, num_nodes=jnp.minimum(draft.num_nodes, num_useful)
  )


def without_broken(
  draft: tree.Draft, vocab_size: int
) -> tuple[tree.Draft, Bool[Array, 'B']]:
  """Drops the drafts of rows whose drafter broke; the rows go on without.

  Broken is a live node with a confidence that is no number, or with a token the
  target does not have (scoring it would read some other token's embedding).

  Returns:
    The draft, and which rows lost theirs.
  """
  node = jnp.arange(draft.tokens.shape[1], dtype=jnp.int32)
  is_draft = (node > 0) & (node < draft.num_nodes[:, None])
  is_bad = ~jnp.isfinite(draft.confidence)
  is_bad |= (draft.tokens < 0) | (draft.tokens >= vocab_size)
  is_broken = jnp.any(is_draft & is_bad, axis=1)
  num_nodes = jnp.where(is_broken, 1, draft.num_nodes)
  return dataclasses.replace(draft, num_nodes=num_nodes), is_broken
