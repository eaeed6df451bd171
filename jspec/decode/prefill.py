# SPDX-License-Identifier: MIT
"""Admits a prompt to a row: its tokens but the last one become cached rows.

The last prompt token is the first anchor, so prefill needs no logits and the
first token is decided by the same round as all others. One row at a time, in
chunks of fixed length; other rows are untouched, since the pages of a row are
its own.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.decode import round as round_lib
from jspec.decode import sampling
from jspec.drafters import base
from jspec.typing import Array, Int


def admit(
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  anchor: Int[Array, ''],
  max_tokens: Int[Array, ''],
  request: sampling.Sampling,
  stop_ids: Int[Array, 'X'],
) -> round_lib.State:
  """Makes `row` empty and gives it to a request.

  `max_tokens` may only be set once the prompt is in (a row with a budget is
  decoded); until then pass 0.
  """
  table = state.cache.table
  lengths = table.lengths.at[row].set(0)
  drafter_state = state.drafter
  if drafter is not None:
    one_row = _table_of(table, row)
    pool = state.cache.pages.k
    fresh = drafter.init_state(one_row, pool.shape[1], pool.shape[3])
    drafter_state = _put_row(state.drafter, fresh, row, keep_pools=True)
  return dataclasses.replace(
    state,
    cache=dataclasses.replace(
      state.cache, table=dataclasses.replace(table, lengths=lengths)
    ),
    drafter=drafter_state,
    anchor=state.anchor.at[row].set(anchor),
    remaining=state.remaining.at[row].set(max_tokens),
    is_stopped=state.is_stopped.at[row].set(False),
    num_output=state.num_output.at[row].set(0),
    sampling=jax.tree.map(
      lambda all_rows, one: all_rows.at[row].set(one[0]),
      state.sampling,
      request,
    ),
    stop_ids=state.stop_ids.at[row].set(stop_ids),
    stats=jax.tree.map(lambda leaf: leaf.at[row].set(0), state.stats),
  )


def prefill(
  target,
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  tokens: Int[Array, 'T'],
  num_tokens: Int[Array, ''],
  next_token: Int[Array, ''],
) -> round_lib.State:
  """Appends `tokens[:num_tokens]` to the row; `next_token` follows them."""
  table = _table_of(state.cache.table, row)
  steps = jnp.arange(tokens.shape[0])[None]
  taps = drafter.taps if drafter is not None else ()
  cache = paged.PagedCache(state.cache.pages, table)
  scored = target.score(
    tokens[None],
    table.lengths[:, None] + steps,
    tree.chain_words(1, tokens.shape[0]),
    cache,
    taps,
  )
  num_rows = num_tokens[None]
  cache = cache.commit(scored.k, scored.v, steps, num_rows)
  drafter_state = state.drafter
  if drafter is not None:
    rows = base.Committed(
      tokens=tokens[None],
      taps=scored.taps,
      num_rows=num_rows,
      next_token=next_token[None],
    )
    one = drafter.commit(_get_row(state.drafter, row), table, rows)
    drafter_state = _put_row(state.drafter, one, row, keep_pools=False)
  whole = state.cache.table
  return dataclasses.replace(
    state,
    cache=paged.PagedCache(
      cache.pages,
      paged.PageTable(
        whole.page_ids,
        whole.lengths.at[row].set(cache.table.lengths[0]),
        whole.dropped | cache.table.dropped,
      ),
    ),
    drafter=drafter_state,
  )


def start(
  state: round_lib.State, row: Int[Array, ''], max_tokens: Int[Array, '']
) -> round_lib.State:
  """Lets the rounds decode the row."""
  remaining = state.remaining.at[row].set(max_tokens)
  return dataclasses.replace(state, remaining=remaining)


def _table_of(table, row):
  return paged.PageTable(
    jax.lax.dynamic_slice_in_dim(table.page_ids, row, 1),
    jax.lax.dynamic_slice_in_dim(table.lengths, row, 1),
    table.dropped,
  )


def _is_pool(leaf):
  return isinstance(leaf, paged.Pages)


def _get_row(state, row):
  """The state of one row; pools are shared and stay whole."""

  def get(leaf):
    if _is_pool(leaf):
      return leaf
    return jax.lax.dynamic_slice_in_dim(leaf, row, 1)

  return jax.tree.map(get, state, is_leaf=_is_pool)


def _put_row(state, one, row, *, keep_pools):
  def put(leaf, new):
    if _is_pool(leaf):
      return leaf if keep_pools else new
    return leaf.at[row].set(new[0])

  return jax.tree.map(put, state, one, is_leaf=_is_pool)
