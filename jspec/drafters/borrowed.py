# SPDX-License-Identifier: MIT
"""Arrays a drafter borrows from its target: embedding and LM head.

They are frozen, never saved with the drafter and no `nnx.Param`, so
`nnx.split(drafter, nnx.Param, ...)` parts what is trained from what is not.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec.drafters import vocab
from jspec.typing import Array, Float, Int


class Frozen(nnx.Variable):
  """An array that no optimiser touches."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Borrowed:
  """The target's arrays as a drafter uses them.

  Attributes:
    embedding: input embeddings, scaled as the target scales them.
    head: LM head; with a reduced draft vocabulary only its columns.
    draft_token_ids: target ids of the head's columns, or None for all.
  """

  embedding: Float[Array, 'V D']
  head: Float[Array, 'D Vd']
  draft_token_ids: Int[Array, 'Vd'] | None = None


def from_target(
  target: nnx.Module, draft_token_ids: np.ndarray | None = None
) -> Borrowed:
  """Borrows from a target with arrays `embedding` [V, D] and `head` [D, V]."""
  embedding, head = target.embedding[...], target.head[...]
  if draft_token_ids is None:
    return Borrowed(embedding, head)
  ids = jnp.asarray(vocab.check(draft_token_ids, embedding.shape[0]))
  # Contiguous columns: a gather in every forward pass would cost more.
  return Borrowed(embedding, jnp.take(head, ids, axis=1), ids)
