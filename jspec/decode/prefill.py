# SPDX-License-Identifier: MIT
"""Admits a prompt to a row: its tokens but the last one become cached rows.

The last prompt token is the first anchor, so prefill needs no logits and the
first token is decided by the same round as all others. One row at a time, in
chunks of fixed length; other rows are untouched, since the pages of a row are
its own.
"""

import dataclasses

import jax.numpy as jnp

from jspec import tree
from jspec.decode import round as round_lib
from jspec.decode import rows, sampling
from jspec.drafters import base
from jspec.typing import Array, Float, Int


def admit(
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  anchor: Int[Array, ''],
  num_cached: Int[Array, ''],
  request: sampling.Sampling,
  stop_ids: Int[Array, 'X'],
  page_ids: Int[Array, 'M'] | None = None,
) -> round_lib.State:
  """Gives `row` to a request; `start` lets the rounds decode it.

  Args:
    drafter: who drafts.
    state: all rows.
    row: which of them.
    anchor: the last token of the prompt.
    num_cached: tokens whose rows lie in the row's pages already. At least one
      more must be prefilled, for drafters keep what they know of a row's last
      token beside the pages.
    request: its sampling parameters.
    stop_ids: tokens that end the row, padded with -1.
    page_ids: pages of the row; None keeps those it has.
  """
  one = rows.take_one(state, row)
  pages = None if page_ids is None else page_ids[None]
  one = rows.empty(drafter, one, pages)
  table = dataclasses.replace(one.cache.table, lengths=num_cached[None])
  one = dataclasses.replace(
    one,
    cache=dataclasses.replace(one.cache, table=table),
    anchor=anchor[None],
    sampling=request,
    stop_ids=stop_ids[None],
  )
  return rows.put_one(state, one, row)


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
  args = (target, drafter, state, row, tokens, num_tokens, next_token)
  return prefill_hidden(*args)[0]


def prefill_hidden(
  target,
  drafter,
  state: round_lib.State,
  row: Int[Array, ''],
  tokens: Int[Array, 'T'],
  num_tokens: Int[Array, ''],
  next_token: Int[Array, ''],
) -> tuple[round_lib.State, Float[Array, 'T D']]:
  """As `prefill`, with the target's normed states of the tokens."""
  one = rows.take_one(state, row)
  table = one.cache.table
  steps = jnp.arange(tokens.shape[0])[None]
  scored = target.score(
    tokens[None],
    table.lengths[:, None] + steps,
    tree.chain_words(1, tokens.shape[0]),
    one.cache,
    drafter.taps if drafter is not None else (),
  )
  num_rows = num_tokens[None]
  drafter_state = one.drafter
  if drafter is not None:
    committed = base.Committed(
      tokens=tokens[None],
      taps=scored.taps,
      num_rows=num_rows,
      next_token=next_token[None],
    )
    drafter_state = drafter.commit(one.drafter, table, committed)
  one = dataclasses.replace(
    one,
    cache=one.cache.commit(scored.k, scored.v, steps, num_rows),
    drafter=drafter_state,
  )
  return rows.put_one(state, one, row), scored.hidden[0]


def start(
  state: round_lib.State, row: Int[Array, ''], max_tokens: Int[Array, '']
) -> round_lib.State:
  """Lets the rounds decode the row."""
  remaining = state.remaining.at[row].set(max_tokens)
  return dataclasses.replace(state, remaining=remaining)
