# SPDX-License-Identifier: MIT
"""Blockwise XLA: a flat list of (row, block of live pages), one softmax.

The list names the blocks that rows really use, so the cost follows the sum of
live pages: neither the capacity of the page table nor the longest row counts. A
loop with a run-time trip count takes a chunk of it at a time, attends each item
on its own, and merges the items of a row by log-sum-exp into a running maximum
m, normaliser z and weighted sum o in float32. The nodes themselves come first.
Query heads that share a key-value head are folded into the query's row axis, so
each page is read once for all of them.
"""

import jax
import jax.numpy as jnp

BLOCK_ROWS = 128  # Cached rows of an item.
MAX_ITEMS = 16  # Items of a chunk, no more than rows; a cache holds 16.
LOWEST = -1e30  # Below any score: the maximum of nothing.


def block_tree_attention(
  q,
  k,
  v,
  k_pages,
  v_pages,
  *,
  layer,
  page_ids,
  lengths,
  ancestors,
  num_nodes,
  depths,
  window,
  sinks,
  scale,
  k_scale=None,
  v_scale=None,
):
  """Same contract as `api.block_tree_attention`."""
  rows, max_nodes, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  groups = num_heads // num_kv_heads
  num_layers, num_pages, _, page_size, _ = k_pages.shape
  folded = _fold(q, num_kv_heads) * scale
  if depths is not None:
    depths = jnp.tile(depths, (1, groups))  # Of the folded queries.

  # One flat page axis, so that no layer of the pool is ever sliced out.
  shape = (num_layers * num_pages, num_kv_heads, page_size, width)
  k_flat, v_flat = k_pages.reshape(shape), v_pages.reshape(shape)
  has_scales = k_scale is not None
  if has_scales:
    k_scale, v_scale = (x.reshape(shape[:-1]) for x in (k_scale, v_scale))
  pages_per_block = max(1, min(BLOCK_ROWS // page_size, page_ids.shape[1]))
  padding = -page_ids.shape[1] % pages_per_block
  ids = jnp.pad(page_ids, ((0, 0), (0, padding)), constant_values=-1)
  ids = jnp.maximum(ids, 0) + layer * num_pages
  ids = ids.reshape(rows, -1, pages_per_block)
  block_len = pages_per_block * page_size

  # Lengths known when compiled would let XLA unroll a loop of one item, and its
  # CPU back end folds that wrongly (jax 0.10.2: rows of lengths 5 and 0).
  lengths = jax.lax.optimization_barrier(lengths)
  row_of, block_of, num_items = _items(lengths, block_len, window)
  num_chunk = min(rows, MAX_ITEMS)

  def body(state):
    start, m, z, o = state
    item = start + jnp.arange(num_chunk, dtype=lengths.dtype)
    row = row_of(item)
    block = block_of(item, row)
    position = block[:, None] * block_len + jnp.arange(block_len)
    is_live = (position < lengths[row][:, None]) & (item < num_items)[:, None]
    is_seen = is_live[:, None]
    if window is not None:
      own = (lengths[:, None] + depths)[row]
      is_seen &= own[:, :, None] - position[:, None] < window

    block_ids = ids[row, block]
    keys = _rows(k_flat[block_ids]).astype(k.dtype)
    scores = jnp.einsum(
      'BKQH,BKSH->BKQS',
      folded if rows == 1 else folded[row],
      keys,
      preferred_element_type=jnp.float32,
    )
    if has_scales:
      scores *= _row_scales(k_scale[block_ids])
    scores = jnp.where(is_seen[:, None], scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    # Items past the end, and windows that see nothing of an item, have no top.
    safe = jnp.where(top > -jnp.inf, top, 0.0)
    weights = jnp.exp(scores - safe)
    # Rows past a length may hold anything, NaN included: 0 * NaN is NaN.
    values = jnp.where(is_live[:, None, :, None], _rows(v_flat[block_ids]), 0)
    values = values.astype(v.dtype)
    normaliser = jnp.sum(weights, axis=-1, keepdims=True)
    if has_scales:
      own = _row_scales(v_scale[block_ids])
      weights *= jnp.where(is_live[:, None, None], own, 0)
    part = (
      top,
      normaliser,
      jnp.einsum(
        'BKQS,BKSH->BKQH',
        weights.astype(values.dtype),
        values,
        preferred_element_type=jnp.float32,
      ),
    )
    return start + num_chunk, *_merge((m, z, o), part, row)

  state = (
    jnp.zeros((), lengths.dtype),
    *_attend_nodes(folded, k, v, ancestors, depths, window, sinks),
  )
  _, _, z, o = jax.lax.while_loop(lambda s: s[0] < num_items, body, state)
  out = (o / z).astype(v.dtype)
  out = out.reshape(rows, num_kv_heads, groups, max_nodes, width)
  out = out.transpose(0, 3, 1, 2, 4).reshape(q.shape)
  if num_nodes is None:
    return out
  is_dead = jnp.arange(max_nodes) >= num_nodes[:, None]
  return jnp.where(is_dead[:, :, None, None], 0, out)


def _items(lengths, block_len, window):
  """The live blocks of all rows as one list.

  Returns functions from an item to its row and from both to its block, and the
  number of items.
  """
  if window is None:
    first = jnp.zeros_like(lengths)
  else:  # The anchor sees furthest back.
    first = jnp.maximum(lengths + 1 - window, 0) // block_len
  counts = jnp.maximum(-(-lengths // block_len) - first, 0)
  ends = jnp.cumsum(counts)
  last_row = lengths.shape[0] - 1

  def row_of(item):
    row = jnp.sum(ends[:, None] <= item, axis=0, dtype=lengths.dtype)
    return jnp.minimum(row, last_row)

  def block_of(item, row):
    return jnp.maximum(first[row] + item - (ends - counts)[row], 0)

  return row_of, block_of, ends[-1]


def _attend_nodes(folded, k, v, ancestors, depths, window, sinks):
  """The state (m, z, o) after the round's own nodes and the sinks."""
  rows, num_kv_heads, num_queries, _ = folded.shape
  groups = num_queries // k.shape[1]
  node = jnp.arange(k.shape[1])
  is_ancestor = (
    ancestors[:, :, node // 32] >> (node % 32).astype(jnp.uint32)
  ) & 1
  visible = jnp.tile(is_ancestor.astype(bool), (1, groups, 1))
  if window is not None:
    own = depths[:, : k.shape[1]]
    visible &= depths[:, :, None] - own[:, None, :] < window
  k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
  scores = jnp.einsum(
    'BKQH,BKUH->BKQU', folded, k, preferred_element_type=jnp.float32
  )
  scores = jnp.where(visible[:, None], scores, -jnp.inf)
  # A row without nodes sees nothing: its maximum stays finite, because NaN
  # there reaches the other rows where items are merged (0 * NaN is NaN).
  m = jnp.max(scores, axis=-1, keepdims=True, initial=LOWEST)
  if sinks is not None:
    sink = sinks.astype(jnp.float32).reshape(num_kv_heads, groups)
    sink = jnp.repeat(sink, k.shape[2], axis=1)[:, :, None]
    m = jnp.maximum(m, sink)
  weights = jnp.exp(scores - m)
  z = jnp.sum(weights, axis=-1, keepdims=True)
  if sinks is not None:
    z += jnp.exp(sink - m)
  o = jnp.einsum(
    'BKQU,BKUH->BKQH',
    weights.astype(v.dtype),
    v,
    preferred_element_type=jnp.float32,
  )
  return m, z, o


def _merge(state, part, row):
  """Adds the items of a chunk, several of a row perhaps, to their rows."""
  m, z, o = state
  part_m, part_z, part_o = part
  if m.shape[0] == 1:  # One row, one item: nothing to sort out.
    m_next = jnp.maximum(m, part_m)
    decay, weight = jnp.exp(m - m_next), jnp.exp(part_m - m_next)
    return m_next, z * decay + part_z * weight, o * decay + part_o * weight
  is_own = row == jnp.arange(m.shape[0])[:, None]  # [B, items]
  tops = jnp.where(is_own[:, :, None, None, None], part_m, -jnp.inf)
  m_next = jnp.maximum(m, jnp.max(tops, axis=1))
  decay = jnp.exp(m - m_next)
  weight = jnp.exp(part_m - m_next[row])
  # A matmul with zeros and ones, because a scatter is a scalar loop on a CPU.
  own = is_own.astype(jnp.float32)
  z = z * decay + jnp.einsum('BI,IKQH->BKQH', own, part_z * weight)
  o = o * decay + jnp.einsum('BI,IKQH->BKQH', own, part_o * weight)
  return m_next, z, o


def _fold(q, num_kv_heads):
  rows, num_nodes, _, width = q.shape
  q = q.reshape(rows, num_nodes, num_kv_heads, -1, width)
  q = q.transpose(0, 2, 3, 1, 4).astype(jnp.float32)
  return q.reshape(rows, num_kv_heads, -1, width)


def _rows(pages):
  """Pages [B, J, K, R, H] of a block as rows [B, K, J * R, H]."""
  rows, _, num_kv_heads, _, width = pages.shape
  return pages.swapaxes(1, 2).reshape(rows, num_kv_heads, -1, width)


def _row_scales(pages):
  """Scales of pages [B, J, K, R] as one for each row, [B, K, 1, J * R]."""
  rows, _, num_kv_heads, _ = pages.shape
  scales = pages.swapaxes(1, 2).reshape(rows, num_kv_heads, 1, -1)
  return scales.astype(jnp.float32)
