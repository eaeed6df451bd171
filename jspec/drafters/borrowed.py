# SPDX-License-Identifier: MIT
"""Arrays a drafter borrows from its target: embedding, final norm, LM head.

They are frozen, never saved with the drafter and no `nnx.Param`, so
`nnx.split(drafter, nnx.Param, ...)` parts what is trained from what is not.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jspec import errors
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

  A drafter narrower than the target (D < Dt) brings its own embedding and head;
  the last three stay as they are.
  """

  embedding: Float[Array, 'V D']
  head: Float[Array, 'D Vd']
  draft_token_ids: Int[Array, 'Vd'] | None = None
  final_norm: Float[Array, 'Dt'] | None = None
  target_head: Float[Array, 'Dt V'] | None = None
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


def frozen(array: Array | None) -> Any:
  """As an attribute of a drafter; None stays None."""
  return nnx.data(None) if array is None else Frozen(array)


def value(variable: nnx.Variable | None) -> Array | None:
  """What such an attribute holds."""
  return None if variable is None else variable[...]


def check(arrays: Borrowed, **expected: tuple[int, ...] | None) -> None:
  """Refuses arrays of another target.

  Args:
    arrays: what is borrowed.
    **expected: by name, the shapes the drafter can use; None for no array.

  Raises:
    UserError: names the array and both shapes.
  """
  for name, want in expected.items():
    array = getattr(arrays, name)
    have = None if array is None else array.shape
    if have != want:
      raise errors.UserError(
        f'borrowed {name} has shape {have}, the drafter expects {want};'
        ' is this the target it was made for?'
      )
