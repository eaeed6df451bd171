# SPDX-License-Identifier: MIT
"""Makes arrays for a case of block-tree attention, and its answer in numpy."""

import jax.numpy as jnp
import numpy as np

from jspec import tree


def parents_of(case, rng):
  """Parents [B, T] of the case's nodes; None for a bidirectional block."""
  rows, num_nodes = len(case.lengths), case.num_nodes
  parents = np.arange(-1, num_nodes - 1)[None].repeat(rows, 0)
  if case.shape == 'block':
    return None
  if case.shape == 'tree':
    for node in range(1, num_nodes):
      parents[:, node] = rng.integers(max(0, node - 20), node, rows)
  if case.shape == 'branches':
    branch_len = (num_nodes - 1) // case.num_branches
    assert branch_len * case.num_branches == num_nodes - 1
    parents[:, 1::branch_len] = 0
  return parents


def make(case, seed=0, dtype=jnp.float32):
  """Positional and named arguments of `api.block_tree_attention`.

  Whatever must not be read (rows past a length, pages nobody owns) is NaN.
  """
  rng = np.random.default_rng(seed)
  rows = len(case.lengths)
  num_pages = rows * case.pages_per_row + 3
  pool = (
    case.num_layers,
    num_pages,
    case.num_kv_heads,
    case.page_size,
    case.head_width,
  )
  page_ids = rng.permutation(num_pages)[: rows * case.pages_per_row]
  page_ids = page_ids.reshape(rows, case.pages_per_row).astype(np.int32)
  lengths = np.array(case.lengths, np.int32)
  pools = [np.full(pool, np.nan, np.float32) for _ in range(2)]
  for row, length in enumerate(lengths):
    for position in range(length):
      slot, offset = divmod(position, case.page_size)
      for one in pools:
        shape = (case.num_layers, case.num_kv_heads, case.head_width)
        one[:, page_ids[row, slot], :, offset] = rng.normal(size=shape)
    page_ids[row, -(-length // case.page_size) :] = -1

  def nodes(heads):
    shape = (rows, case.num_nodes, heads, case.head_width)
    return rng.normal(size=shape).astype(np.float32)

  parents = parents_of(case, rng)
  if parents is None:
    words = tree.block_words(rows, case.num_nodes)
    depths = jnp.tile(jnp.arange(case.num_nodes), (rows, 1))
  else:
    parents = jnp.asarray(parents, jnp.int32)
    words, depths = tree.ancestor_words(parents), tree.depths(parents)
  arrays = (
    nodes(case.num_heads),
    nodes(case.num_kv_heads),
    nodes(case.num_kv_heads),
    *pools,
  )
  live, sinks = case.live_nodes, rng.normal(size=case.num_heads)
  named = dict(
    layer=jnp.int32(1),
    page_ids=jnp.asarray(page_ids),
    lengths=jnp.asarray(lengths),
    ancestors=words,
    num_nodes=None if live is None else jnp.asarray(live, jnp.int32),
    depths=depths,
    window=case.window,
    sinks=jnp.asarray(sinks, jnp.float32) if case.has_sinks else None,
  )
  return tuple(jnp.asarray(x, dtype) for x in arrays), named


def naive(arrays, named):
  """Softmax attention written node by node, in float64."""
  q, k, v, k_pages, v_pages = (np.asarray(x, np.float64) for x in arrays)
  words, page_ids, depths = (
    np.asarray(named[name]) for name in ('ancestors', 'page_ids', 'depths')
  )
  window = named['window'] or 10**9
  page_size = k_pages.shape[3]
  out = np.zeros_like(q)
  groups = q.shape[2] // k.shape[2]
  for row, length in enumerate(np.asarray(named['lengths'])):
    num_nodes = q.shape[1]
    if named['num_nodes'] is not None:
      num_nodes = int(named['num_nodes'][row])
    for node in range(num_nodes):
      cached = [
        (page_ids[row, p // page_size], p % page_size)
        for p in range(length)
        if length + depths[row, node] - p < window
      ]
      seen = [
        j
        for j in range(q.shape[1])
        if words[row, node, j // 32] >> (j % 32) & 1
        and depths[row, node] - depths[row, j] < window
      ]
      for head in range(q.shape[2]):
        kv = head // groups
        keys = [k_pages[1, p, kv, r] for p, r in cached]
        values = [v_pages[1, p, kv, r] for p, r in cached]
        keys = np.stack(keys + [k[row, j, kv] for j in seen])
        values = np.stack(values + [v[row, j, kv] for j in seen])
        scores = keys @ q[row, node, head] / np.sqrt(q.shape[-1])
        weights = np.exp(scores)
        total = weights.sum()
        if named['sinks'] is not None:
          total += np.exp(np.float64(named['sinks'][head]))
        out[row, node, head] = weights @ values / total
  return out
