# SPDX-License-Identifier: MIT
"""Reference: gathers every row's whole prefix and attends densely."""

import jax
import jax.numpy as jnp


def block_tree_attention(
  q, k, v, k_pages, v_pages, *, layer, page_ids, lengths, ancestors, scale
):
  """Same contract as `api.block_tree_attention`; the specification."""
  rows, num_nodes, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  page_size = k_pages.shape[3]
  capacity = page_ids.shape[1] * page_size

  def prefix(pool):
    gathered = pool[layer][jnp.maximum(page_ids, 0)].swapaxes(2, 3)
    return gathered.reshape(rows, capacity, num_kv_heads, width)

  node = jnp.arange(num_nodes)
  is_ancestor = (
    ancestors[:, :, node // 32] >> (node % 32).astype(jnp.uint32)
  ) & 1
  is_live = jnp.arange(capacity) < lengths[:, None]
  mask = jnp.concatenate(
    [
      jnp.broadcast_to(is_live[:, None], (rows, num_nodes, capacity)),
      is_ancestor.astype(bool),
    ],
    axis=-1,
  )
  # Rows past a length may hold anything, NaN included: blank the values too.
  blank = is_live[:, :, None, None]
  all_k = jnp.concatenate([jnp.where(blank, prefix(k_pages), 0), k], axis=1)
  all_v = jnp.concatenate([jnp.where(blank, prefix(v_pages), 0), v], axis=1)
  grouped = q.reshape(rows, num_nodes, num_kv_heads, -1, width)
  scores = jnp.einsum('BTKGH,BSKH->BKGTS', grouped, all_k) * scale
  scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  weights = jax.nn.softmax(scores.astype(jnp.float32), axis=-1)
  out = jnp.einsum('BKGTS,BSKH->BTKGH', weights.astype(v.dtype), all_v)
  return out.reshape(rows, num_nodes, num_heads, width)
