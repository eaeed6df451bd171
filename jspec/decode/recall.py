# SPDX-License-Identifier: MIT
"""What a drafter is told of a prefix whose rows lie in the cache already.

Rows that are found are not prefilled, so `Drafter.commit` never sees them. What
a drafter keeps in pages is found with them. What it keeps beside them would be
missing, and of the text itself it is not lost: a drafter that wants no taps
(`ngram`, `suffix`) takes the tokens in once more.

Drafters with taps keep beside their pages only what belongs to a row's last
token, which is always prefilled (`prefill.admit`).
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.cache import paged
from jspec.decode import round as round_lib
from jspec.decode import rows as rows_lib
from jspec.drafters import base, mixed
from jspec.typing import Array, Int


def recall(
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  tokens: Int[Array, 'S'],
  num_cached: Int[Array, ''],
) -> round_lib.State:
  """Tells the drafter of a row that was just admitted.

  Args:
    drafter: who drafts; None or one that needs no telling changes nothing.
    state: all rows; the row has chosen its member, if there are several.
    row: which of them.
    tokens: the row's text, from its beginning.
    num_cached: how many of them have rows.
  """
  is_mixed = isinstance(drafter, mixed.Mixed)
  if drafter is None or _is_paged(state.drafter):
    return state
  if drafter.taps and not is_mixed:
    return state
  one = rows_lib.take_one(state, row)
  table = one.cache.table
  table = dataclasses.replace(table, lengths=jnp.zeros_like(table.lengths))
  text = base.Committed(
    tokens=tokens[None],
    taps=jnp.zeros((1, tokens.shape[0], 0, 0)),
    num_rows=num_cached[None],
    next_token=tokens[jnp.minimum(num_cached, tokens.shape[0] - 1)][None],
  )
  commit = drafter.commit_text if is_mixed else drafter.commit
  one = dataclasses.replace(one, drafter=commit(one.drafter, table, text))
  return rows_lib.put_one(state, one, row)


def _is_paged(state):
  """Whether all that a drafter keeps is in pages."""
  leaves = jax.tree.leaves(
    state, is_leaf=lambda leaf: isinstance(leaf, paged.Pages)
  )
  return all(isinstance(leaf, paged.Pages) for leaf in leaves)
