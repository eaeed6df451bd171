# SPDX-License-Identifier: MIT
"""Drafters that are one layer, run on their own output (EAGLE-3, MTP).

  hidden_0, logits_0        behind the anchor, from the last committed row
  token_i ~ logits_i        a child of the node
  hidden_{i+1}, logits_{i+1} = run(hidden_i, token_i)

Drafting starts from the root (what the last `commit` left behind) and one
function that runs the drafter on the nodes of a level:

  memory, hidden, logits = run(memory, nodes)

`memory` is the drafter's own, usually scratch key and value rows (`scratch`),
and made by `start` for as many of them as a kind of draft needs; `sequential`
has the kinds. Committed rows are made from the target's true states: all are
written, and the layer runs on the last of them only.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jspec import tree
from jspec.cache import paged
from jspec.drafters import anchors, base, pick, scratch, sequential
from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.typing import Array, Float, Int, Key, PyTree, UInt32


class State(NamedTuple):
  """What decoding keeps.

  Attributes:
    pages: key and value rows of the committed tokens.
    hidden: output of each row's last committed one; 0 before the first.
  """

  pages: paged.Pages
  hidden: Float[Array, 'B D']


class Root(NamedTuple):
  """What is known behind the anchor before anything is drafted."""

  hidden: Float[Array, 'B D']
  logits: Float[Array, 'B Vd']


class Nodes(NamedTuple):
  """Nodes of one level that the drafter is run on.

  Attributes:
    tokens: ids of the target's vocabulary.
    hidden: what the drafter gave out behind each one's parent.
    ancestors: scratch rows each one sees, its own among them; the level's rows
      are level * W onwards.
    level: 0 for the nodes of depth 1, one behind the anchor.
  """

  tokens: Int[Array, 'B W']
  hidden: Float[Array, 'B W D']
  ancestors: UInt32[Array, 'B W words']
  level: Int[Array, '']


# New memory, hidden [B, W, D] and logits [B, W, Vd] behind every node.
Run = Callable[[PyTree, Nodes], tuple[PyTree, Array, Array]]
# The memory before the first level, with so many scratch rows.
Start = Callable[[int], PyTree]


def propose(
  run: Run,
  start: Start,
  root: Root,
  anchor: Int[Array, 'B'],
  draft_token_ids: Int[Array, 'Vd'] | None,
  temperature: Float[Array, 'B'] | None,
  keys: Key[Array, 'B'] | None,
  **sizes: int,
) -> tree.Draft:
  """A draft behind the anchor.

  Args:
    run: runs the drafter on nodes.
    start: makes its memory.
    root: behind the anchor.
    anchor: node 0.
    draft_token_ids: of a reduced vocabulary.
    temperature: of every row; None for a function of the committed prefix.
    keys: of the rows, where there is a temperature.
    **sizes: as in `sequential.propose`.
  """

  def behind_anchor(count):
    return pick.top(root.logits, draft_token_ids, count)

  def first(width, num_levels):
    hidden = jnp.repeat(root.hidden[:, None], width, axis=1)
    return start(width * num_levels), hidden

  def step(state, beam, count):
    memory, hidden = state
    hidden = anchors.gather(hidden, beam.parents)
    memory, hidden, logits = run(
      memory, Nodes(beam.tokens, hidden, beam.ancestors, beam.level)
    )
    return (memory, hidden), pick.top(logits, draft_token_ids, count)

  source = sequential.Source(behind_anchor, first, step)
  return sequential.propose(source, anchor, temperature, keys, **sizes)


def empty_state(
  table: paged.PageTable,
  num_pages: int,
  page_size: int,
  num_kv_heads: int,
  head_width: int,
  width: int,
  dtype: jnp.dtype,
) -> State:
  """No rows of a layer, and zeros behind nothing."""
  pages = paged.init_pages(
    1, num_pages, page_size, num_kv_heads, head_width, dtype
  )
  return State(pages, jnp.zeros((table.lengths.shape[0], width), dtype))


def positions(nodes: Nodes, table: paged.PageTable) -> Int[Array, 'B W']:
  """Where the layer's rows of the nodes stand: a node's own minus one."""
  at = table.lengths + nodes.level
  return jnp.broadcast_to(at[:, None], nodes.tokens.shape)


def attend(
  memory: scratch.Rows,
  q: Float[Array, 'B W N H'],
  k: Float[Array, 'B W K H'],
  v: Float[Array, 'B W K H'],
  nodes: Nodes,
  pages: paged.Pages,
  table: paged.PageTable,
) -> tuple[scratch.Rows, Float[Array, 'B W N H']]:
  """Writes the rows of a level and lets it see all that its nodes descend from.

  Returns:
    The new memory and the mixed values.
  """
  first = nodes.level * nodes.tokens.shape[1]
  memory = scratch.write(memory, k, v, first)
  mixed = scratch.attend(
    q, *memory, nodes.ancestors, pages, table, layer=0, first=first
  )
  return memory, mixed


def at_last(values: Array, rows: base.Committed) -> Array:
  """`values` [B, T, ...] of the last committed row, [B, 1, ...]."""
  return anchors.gather(values, jnp.maximum(rows.num_rows - 1, 0)[:, None])


def write(
  pages: paged.Pages,
  table: paged.PageTable,
  rows: base.Committed,
  q: Float[Array, 'B 1 N H'],
  k: Float[Array, 'B T K H'],
  v: Float[Array, 'B T K H'],
) -> tuple[paged.Pages, Float[Array, 'B 1 N H']]:
  """Writes committed rows behind the prefix; the last one looks back.

  Args:
    pages: of the rows before.
    table: from before.
    rows: how many are real.
    q: the query of the last row.
    k: keys of all rows.
    v: values.

  Returns:
    The pages and the mixed values of the last row.
  """
  path = jnp.arange(rows.tokens.shape[1])
  path = jnp.broadcast_to(path, rows.tokens.shape)
  # A row without a page shows in the target's own commit: same table.
  pages, _ = paged.write(pages, table, k[None], v[None], path, rows.num_rows)
  # The last row sees itself as a node, and what is in the pages before it.
  mixed = block_tree_attention.block_tree_attention(
    q,
    at_last(k, rows),
    at_last(v, rows),
    pages.k,
    pages.v,
    layer=jnp.int32(0),
    page_ids=table.page_ids,
    lengths=jnp.maximum(table.lengths + rows.num_rows - 1, 0),
    ancestors=tree.chain_words(q.shape[0], 1),
  )
  return pages, mixed


def newest(
  state: State,
  pages: paged.Pages,
  hidden: Float[Array, 'B 1 D'],
  rows: base.Committed,
) -> State:
  """The state after a commit; without rows the last output stays."""
  is_live = rows.num_rows[:, None] > 0
  return State(pages, jnp.where(is_live, hidden[:, 0], state.hidden))
