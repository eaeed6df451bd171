# SPDX-License-Identifier: MIT
"""N-gram drafting (prompt lookup): the text repeats itself, so copy it.

The last n tokens (n = 3, then 2, then 1) are looked up earlier in the row; the
most recent match wins and what followed it is the draft:

  a b c x y z a b c        last 3 = a b c, matched 6 back  ->  x y z a b c ...

A match d tokens back says that the text has period d, so a draft longer than d
goes on around the period. No match, no drafts (num_nodes is 1). Drafts are a
function of the prefix, hence q is None at any temperature.

The anchor is not in the state: its row is not committed. Windows ending at the
anchor itself are therefore never matched against themselves.
"""

import jax.numpy as jnp
from flax import nnx

from jspec import errors, tree
from jspec.cache import paged
from jspec.drafters import base
from jspec.typing import Array, Bool, Float, Int, Key

# Chance that the next copied token is right, by length of the match 1, 2, 3:
# a prior that orders drafts by trust, to be calibrated by whoever needs more.
CONFIDENCE = (0.3, 0.5, 0.8)


class NGram(nnx.Module):
  """Copies what followed the last occurrence of the current n-gram."""

  # Few, because a round scores all or none of them and most matches end soon.
  def __init__(self, num_draft_tokens: int = 3):
    if num_draft_tokens < 1:
      raise errors.UserError(
        f'num_draft_tokens={num_draft_tokens}: expected a whole number from 1'
      )
    self.taps = ()
    self.num_draft_tokens = num_draft_tokens
    self.confidence_depends = 'prefix'

  def init_state(
    self, table: paged.PageTable, num_pages: int, page_size: int
  ) -> Int[Array, 'B S']:
    """A token buffer as long as a row can get."""
    return token_buffer(table, num_pages, page_size)

  def propose(
    self,
    state: Int[Array, 'B S'],
    table: paged.PageTable,
    anchor: Int[Array, 'B'],
    temperature: Float[Array, 'B'] | None,
    keys: Key[Array, 'B'] | None,
  ) -> tree.Draft:
    """Looks the last tokens up and copies what followed."""
    del temperature, keys
    rows, num_nodes = anchor.shape[0], self.num_draft_tokens + 1
    lengths = table.lengths
    match, end = _last_match(state, lengths, anchor)
    # Tokens end + 1 .. length, the last of them the anchor, then around again.
    period = jnp.maximum(lengths - end, 1)[:, None]
    source = (end + 1)[:, None] + jnp.arange(num_nodes - 1) % period
    copied = jnp.take_along_axis(
      state, jnp.clip(source, 0, state.shape[1] - 1), axis=1
    )
    copied = jnp.where(source == lengths[:, None], anchor[:, None], copied)
    found = match > 0
    confidence = jnp.asarray((0.0, *CONFIDENCE), jnp.float32)[match]
    confidence = jnp.broadcast_to(confidence[:, None], copied.shape)
    return tree.Draft(
      tokens=jnp.concatenate(
        [anchor[:, None], jnp.where(found[:, None], copied, 0)], axis=1
      ).astype(anchor.dtype),
      parents=tree.chain_parents(rows, num_nodes),
      num_nodes=jnp.where(found, num_nodes, 1).astype(jnp.int32),
      confidence=jnp.concatenate([jnp.ones((rows, 1)), confidence], axis=1),
    )

  def commit(
    self,
    state: Int[Array, 'B S'],
    table: paged.PageTable,
    rows: base.Committed,
  ) -> Int[Array, 'B S']:
    """Appends the tokens of the rows."""
    return append_tokens(state, table, rows)


def token_buffer(
  table: paged.PageTable, num_pages: int, page_size: int
) -> Int[Array, 'B S']:
  """The state of drafters that only look at the text: no tokens yet."""
  del num_pages
  rows, pages_per_row = table.page_ids.shape
  return jnp.zeros((rows, pages_per_row * page_size), jnp.int32)


def append_tokens(
  state: Int[Array, 'B S'], table: paged.PageTable, rows: base.Committed
) -> Int[Array, 'B S']:
  """The buffer with the tokens of the rows behind `table.lengths`."""
  num_rows, num_steps = rows.tokens.shape
  steps = jnp.arange(num_steps)
  is_live = steps < rows.num_rows[:, None]
  # Out of range on purpose where nothing is to be written.
  index = jnp.where(is_live, table.lengths[:, None] + steps, state.shape[1])
  row = jnp.arange(num_rows)[:, None]
  return state.at[row, index].set(rows.tokens.astype(state.dtype), mode='drop')


def _last_match(
  tokens: Int[Array, 'B S'], lengths: Int[Array, 'B'], anchor: Int[Array, 'B']
) -> tuple[Int[Array, 'B'], Int[Array, 'B']]:
  """Length of the longest match (0: none) and where its latest window ends."""
  index = jnp.arange(tokens.shape[1])
  hit = (tokens == anchor[:, None]) & (index < lengths[:, None])
  match = jnp.zeros_like(lengths)
  end = jnp.zeros_like(lengths)
  for n in (1, 2, 3):
    if n > 1:
      hit &= _equals_earlier(tokens, lengths, n - 1)
    last = jnp.max(jnp.where(hit, index, -1), axis=1)
    match = jnp.where(last >= 0, n, match)
    end = jnp.where(last >= 0, last, end)
  return match, end


def _equals_earlier(
  tokens: Int[Array, 'B S'], lengths: Int[Array, 'B'], back: int
) -> Bool[Array, 'B S']:
  """Whether the token `back` before each equals the one before the anchor."""
  at = jnp.maximum(lengths - back, 0)[:, None]
  wanted = jnp.take_along_axis(tokens, at, axis=1)
  earlier = jnp.pad(tokens, ((0, 0), (back, 0)))[:, : tokens.shape[1]]
  is_real = jnp.arange(tokens.shape[1]) >= back
  return (earlier == wanted) & is_real
