# SPDX-License-Identifier: MIT
"""How SpecBlock drafts: the first block is there already, the second branches.

`commit` runs the first block on all accepted rows, so the newest row's slots
are at hand when drafting begins: a chain costs no pass. A tree (`tree_size`)
runs a second block once, on all its starts (`trees.multi_slot`).

Sampled drafting takes the first block's slots alone, as parallel laws: a chain,
or with `tree_size` a tree of fixed shape (`pick`). A grown tree is a function
of the prefix and has no law to sample from.

State: key and value rows of every slot, in pages under the target's page ids,
and the newest row's states. The features of a row come with the token behind
it, so nothing waits for the next round.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.drafters import (
  base,
  pick,
  rank_head,
  slot_pages,
  specblock_attention,
  specblock_layer,
  vocab,
)
from jspec.trees import candidates, multi_slot
from jspec.typing import Array, Float, Int, Key

# Nodes one pass of `commit` takes: what block-tree attention scores at once.
_MOST_NODES = 1024


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
  """What is known of the committed tokens.

  Attributes:
    pages: rows of the first block, K a position.
    hidden: the newest position's slots before the final norm; 0 of no position.
  """

  pages: paged.Pages
  hidden: Float[Array, 'B slots D']


def init_state(
  drafter, table: paged.PageTable, num_pages: int, page_size: int
) -> State:
  """An empty pool, and no newest row."""
  c = drafter.config
  dtype = drafter.condition_proj[...].dtype
  rows = page_size * c.block_size
  pages = paged.init_pages(
    c.num_layers, num_pages, rows, c.num_kv_heads, c.head_width, dtype
  )
  shape = (table.lengths.shape[0], c.block_size, c.width)
  return State(pages, jnp.zeros(shape, dtype))


def propose(
  drafter,
  state: State,
  table: paged.PageTable,
  anchor: Int[Array, 'B'],
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
) -> tree.Draft:
  """Drafts behind the anchor, which the newest row was fed."""
  c = drafter.config
  if c.tree_size and temperature is None:
    return multi_slot.build(
      block(drafter, state.hidden[:, None]),
      _second(drafter, state, table) if c.tree_blocks == 2 else None,
      anchor,
      num_nodes=c.tree_size + 1,
      widths=c.widths,
    )
  logits = drafter.normed(state.hidden) @ drafter.head[...]
  logits = logits[:, : c.num_draft_tokens].astype(jnp.float32)
  given = (anchor, drafter.token_ids(), temperature, keys)
  if c.tree_size:
    return pick.sampled_tree(logits, *given, c.tree_size, c.support)
  return pick.chain(logits, *given, c.support)


def commit(
  drafter, state: State, table: paged.PageTable, rows: base.Committed
) -> State:
  """Runs the first block on accepted rows and writes what it made.

  Long chunks go in several passes, each of which sees the ones before.
  """
  size, following = rows.tokens.shape[1], rows.following()
  most = max(1, _MOST_NODES // drafter.config.block_size)
  for start in range(0, size, most):
    part = slice(start, start + most)
    num_rows = jnp.clip(rows.num_rows - start, 0, min(most, size - start))
    state = _commit(
      drafter, state, table, rows.taps[:, part], following[:, part], num_rows
    )
    table = paged.advance(table, num_rows, jnp.zeros((), bool))
  return state


def second(
  drafter, state: State, table: paged.PageTable, starts: multi_slot.Starts
) -> Float[Array, 'B starts slots D']:
  """States of the second block behind every start."""
  condition = jnp.take_along_axis(state.hidden, starts.slots[..., None], axis=1)
  positions = jnp.maximum(table.lengths - 1, 0)[:, None]
  hidden, _ = specblock_layer.run(
    drafter.layers,
    drafter.config,
    drafter.fuse(condition, starts.tokens),
    jnp.broadcast_to(positions, starts.tokens.shape),
    specblock_attention.branches(
      state.pages, table, starts.slots, drafter.config.block_size
    ),
  )
  return hidden


def block(
  drafter, hidden: Float[Array, 'B starts slots D']
) -> multi_slot.Block:
  """Candidates and rank classes of every slot."""
  normed = drafter.normed(hidden)
  found = candidates.top(normed @ drafter.head[...], rank_head.NUM_LOGITS)
  scores = drafter.rank_scores(normed, found.log_probs)
  ids = vocab.to_target(found.ids, drafter.token_ids())
  classes = jnp.argmax(scores, axis=-1).astype(jnp.int32)
  return multi_slot.Block(found._replace(ids=ids), classes)


def _second(drafter, state, table):
  def run(starts):
    return block(drafter, second(drafter, state, table, starts))

  return run


def _commit(drafter, state, table, taps, following, num_rows) -> State:
  positions = table.lengths[:, None] + jnp.arange(following.shape[1])
  hidden, made = specblock_layer.run(
    drafter.layers,
    drafter.config,
    drafter.fuse(drafter.condition(taps), following),
    positions,
    specblock_attention.commit(state.pages, table, num_rows),
  )
  k, v = (jnp.stack(x) for x in zip(*made, strict=True))
  last = jnp.maximum(num_rows - 1, 0)[:, None, None, None]
  newest = jnp.take_along_axis(hidden, last, axis=1)[:, 0]
  is_new = (num_rows > 0)[:, None, None]
  return State(
    slot_pages.write(state.pages, table, k, v, num_rows),
    jnp.where(is_new, newest, state.hidden),
  )
