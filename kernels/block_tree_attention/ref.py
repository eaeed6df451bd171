# SPDX-License-Identifier: MIT
"""Reference: gathers every row's whole prefix and attends densely."""

import jax.numpy as jnp


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
  """Same contract as `api.block_tree_attention`; the specification."""
  rows, max_nodes, num_heads, width = q.shape
  num_kv_heads = k.shape[2]
  page_size = k_pages.shape[3]
  capacity = page_ids.shape[1] * page_size

  def prefix(pool, scales):
    gathered = pool[layer][jnp.maximum(page_ids, 0)].astype(v.dtype)
    if scales is not None:
      scales = scales[layer][jnp.maximum(page_ids, 0)]
      gathered *= scales[..., None].astype(v.dtype)
    gathered = gathered.swapaxes(2, 3)
    return gathered.reshape(rows, capacity, num_kv_heads, width)

  node = jnp.arange(max_nodes)
  is_ancestor = (
    ancestors[:, :, node // 32] >> (node % 32).astype(jnp.uint32)
  ) & 1
  is_live = jnp.arange(capacity) < lengths[:, None]
  sees_cached = jnp.broadcast_to(is_live[:, None], (rows, max_nodes, capacity))
  sees_node = is_ancestor.astype(bool)
  if window is not None:
    distance = (lengths[:, None] + depths)[:, :, None] - jnp.arange(capacity)
    sees_cached &= distance < window
    sees_node &= depths[:, :, None] - depths[:, None, :] < window
  mask = jnp.concatenate([sees_cached, sees_node], axis=-1)
  # Rows past a length may hold anything, NaN included: blank the values too.
  blank = is_live[:, :, None, None]
  all_k = jnp.concatenate(
    [jnp.where(blank, prefix(k_pages, k_scale), 0), k], axis=1
  )
  all_v = jnp.concatenate(
    [jnp.where(blank, prefix(v_pages, v_scale), 0), v], axis=1
  )
  grouped = q.reshape(rows, max_nodes, num_kv_heads, -1, width)
  scores = jnp.einsum(
    'BTKGH,BSKH->BKGTS',
    grouped,
    all_k,
    preferred_element_type=jnp.float32,
  )
  scores = jnp.where(mask[:, None, None], scores * scale, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True)
  if sinks is not None:
    sink = sinks.astype(jnp.float32).reshape(num_kv_heads, -1, 1, 1)
    top = jnp.maximum(top, sink)
  weights = jnp.exp(scores - top)
  total = jnp.sum(weights, axis=-1, keepdims=True)
  if sinks is not None:
    total += jnp.exp(sink - top)
  out = jnp.einsum(
    'BKGTS,BSKH->BTKGH',
    (weights / total).astype(v.dtype),
    all_v,
    preferred_element_type=jnp.float32,
  )
  out = out.reshape(rows, max_nodes, num_heads, width).astype(v.dtype)
  if num_nodes is None:
    return out
  is_dead = node >= num_nodes[:, None]
  return jnp.where(is_dead[:, :, None, None], 0, out)
