# SPDX-License-Identifier: MIT
"""Blockwise XLA: the prefix in blocks of pages, the nodes last, one softmax.

A loop with a run-time trip count visits only blocks that some row still uses,
and keeps a running maximum m, normaliser z and weighted sum o in float32 (the
log-sum-exp merge). Query heads that share a key-value head are folded into the
query's row axis, so each page is read once for all of them.
"""

import jax
import jax.numpy as jnp

BLOCK_ROWS = 128  # Cached rows a loop step reads for every batch row.


def block_tree_attention(
  q, k, v, k_pages, v_pages, *, layer, page_ids, lengths, ancestors, scale
):
  """Same contract as `api.block_tree_attention`."""
  rows, num_nodes, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  num_layers, num_pages, _, page_size, _ = k_pages.shape
  groups = num_heads // num_kv_heads
  folded = _fold(q, num_kv_heads) * scale

  # One flat page axis, so that no layer of the pool is ever sliced out.
  shape = (num_layers * num_pages, num_kv_heads, page_size, width)
  k_flat, v_flat = k_pages.reshape(shape), v_pages.reshape(shape)
  pages_per_block = max(1, min(BLOCK_ROWS // page_size, page_ids.shape[1]))
  padding = -page_ids.shape[1] % pages_per_block
  ids = jnp.pad(page_ids, ((0, 0), (0, padding)), constant_values=-1)
  ids = jnp.maximum(ids, 0) + layer * num_pages
  block_len = pages_per_block * page_size

  node = jnp.arange(num_nodes)
  is_ancestor = (
    ancestors[:, :, node // 32] >> (node % 32).astype(jnp.uint32)
  ) & 1
  k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
  own = jnp.einsum('BKQH,BKUH->BKQU', folded, k)
  visible = jnp.tile(is_ancestor.astype(bool), (1, groups, 1))[:, None]
  own = jnp.where(visible, own, -jnp.inf)
  m = jnp.max(own, axis=-1, keepdims=True)
  weights = jnp.exp(own - m)
  z = jnp.sum(weights, axis=-1, keepdims=True)
  o = jnp.einsum('BKQU,BKUH->BKQH', weights, v)

  def body(state):
    i, m, z, o = state
    block = jax.lax.dynamic_slice_in_dim(
      ids, i * pages_per_block, pages_per_block, axis=1
    )
    is_live = i * block_len + jnp.arange(block_len) < lengths[:, None]

    keys = _rows(k_flat[block])
    scores = jnp.einsum('BKQH,BKSH->BKQS', folded, keys)
    scores = jnp.where(is_live[:, None, None], scores, -jnp.inf)
    m_next = jnp.maximum(m, jnp.max(scores, axis=-1, keepdims=True))
    decay = jnp.exp(m - m_next)
    weights = jnp.exp(scores - m_next)
    z = z * decay + jnp.sum(weights, axis=-1, keepdims=True)
    # Rows past a length may hold anything, NaN included: 0 * NaN is NaN.
    values = jnp.where(is_live[:, None, :, None], _rows(v_flat[block]), 0)
    o = o * decay + jnp.einsum('BKQS,BKSH->BKQH', weights, values)
    return i + 1, m_next, z, o

  num_blocks = -(-jnp.max(lengths) // block_len)
  state = (jnp.zeros((), lengths.dtype), m, z, o)
  _, _, z, o = jax.lax.while_loop(lambda s: s[0] < num_blocks, body, state)
  out = (o / z).astype(v.dtype)
  out = out.reshape(rows, num_kv_heads, groups, num_nodes, width)
  return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def _fold(q, num_kv_heads):
  rows, num_nodes, _, width = q.shape
  q = q.reshape(rows, num_nodes, num_kv_heads, -1, width)
  q = q.transpose(0, 2, 3, 1, 4).astype(jnp.float32)
  return q.reshape(rows, num_kv_heads, -1, width)


def _rows(pages):
  """Pages [B, J, K, R, H] of a block as rows [B, K, J * R, H]."""
  rows, _, num_kv_heads, _, width = pages.shape
  return pages.swapaxes(1, 2).reshape(rows, num_kv_heads, -1, width)
