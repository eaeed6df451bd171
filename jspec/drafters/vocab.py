# SPDX-License-Identifier: MIT
"""A reduced draft vocabulary: the head scores only the tokens worth drafting.

`draft_token_ids` [Vd] are absolute target ids, ascending; column i of the head
scores token draft_token_ids[i]. Absolute, because the other convention in use
(offsets, id = i + d2t[i]) turns into doubled ids when the two are confused. The
target still scores its whole vocabulary, so the output is unchanged; a token
outside the draft vocabulary is merely never drafted.
"""

import jax.numpy as jnp
import numpy as np

from jspec import errors
from jspec.typing import Array, Bool, Int


def check(draft_token_ids: np.ndarray, vocab_size: int) -> np.ndarray:
  """Returns the ids as int32 after checking them.

  Raises:
    UserError: not ascending and unique, or out of range.
  """
  ids = np.asarray(draft_token_ids)
  if ids.ndim != 1 or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
    raise errors.UserError(
      'draft_token_ids: expected a list of integers, got'
      f' {ids.dtype} of shape {ids.shape}'
    )
  if np.any(np.diff(ids) <= 0):
    raise errors.UserError(
      'draft_token_ids: expected absolute token ids, ascending and unique'
      ' (offsets? convert them: id = i + d2t[i])'
    )
  if ids[0] < 0 or ids[-1] >= vocab_size:
    raise errors.UserError(
      f'draft_token_ids: {ids[0]}..{ids[-1]} is outside the vocabulary of'
      f' {vocab_size} tokens; use the map saved with this drafter'
    )
  return ids.astype(np.int32)


def choose_by_frequency(
  counts: np.ndarray, size: int, always: tuple[int, ...] = ()
) -> np.ndarray:
  """The `size` most frequent tokens of `counts` [V], ascending.

  Ties go to the lower id. `always` names tokens to keep whatever their count
  (end-of-sequence and the like).

  Raises:
    UserError: the size does not fit.
  """
  counts = np.asarray(counts, np.int64)
  if not len(set(always)) <= size <= counts.size:
    raise errors.UserError(
      f'draft vocabulary of {size}: choose between {len(set(always))} and'
      f' {counts.size} tokens'
    )
  ranked = counts.copy()
  ranked[list(always)] = counts.max() + 1
  order = np.argsort(-ranked, kind='stable')[:size]
  return check(np.sort(order), counts.size)


def to_draft(
  tokens: Int[Array, '*batch'], draft_token_ids: Int[Array, 'Vd'] | None
) -> tuple[Int[Array, '*batch'], Bool[Array, '*batch']]:
  """Head columns of target tokens and whether they have one (else column 0)."""
  if draft_token_ids is None:
    return tokens, jnp.ones(tokens.shape, bool)
  column = jnp.searchsorted(draft_token_ids, tokens).astype(jnp.int32)
  column = jnp.minimum(column, draft_token_ids.shape[0] - 1)
  inside = draft_token_ids[column] == tokens
  return jnp.where(inside, column, 0), inside


def to_target(
  columns: Int[Array, '*batch'], draft_token_ids: Int[Array, 'Vd'] | None
) -> Int[Array, '*batch']:
  """Target tokens of head columns."""
  return columns if draft_token_ids is None else draft_token_ids[columns]
