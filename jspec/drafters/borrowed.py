# SPDX-License-Identifier: MIT
"""Arrays a drafter borrows from its target: embedding, final norm, LM head.

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
    final_norm: gain of the norm before the head; drafters that read last states
      or have a teacher need it.
    target_head: the whole LM head, whatever the draft vocabulary.
    norm_eps: of the final norm.
  """

  embedding: Float[Array, 'V D']
  head: Float[Array, 'D Vd']
  draft_token_ids: Int[Array, 'Vd'] | None = None
  final_norm: Float[Array, 'D'] | None = None
  target_head: Float[Array, 'D V'] | None = None
  norm_eps: float = dataclasses.field(default=1e-6, metadata={'static': True})


def from_target(
  target: nnx.Module, draft_token_ids: np.ndarray | None = None
) -> Borrowed:
  """Borrows from a target.

  Args:
    target: has arrays `embedding` [V, D], `head` [D, V], `final_norm` [D] and
      `config.norm_eps`.
    draft_token_ids: the reduced draft vocabulary; None for none.
  """
  embedding, head = target.embedding[...], target.head[...]
  rest = (target.final_norm[...], head, target.config.norm_eps)
  if draft_token_ids is None:
    return Borrowed(embedding, head, None, *rest)
  ids = jnp.asarray(vocab.check(draft_token_ids, embedding.shape[0]))
  # Contiguous columns: a gather in every forward pass would cost more.
  return Borrowed(embedding, jnp.take(head, ids, axis=1), ids, *rest)
