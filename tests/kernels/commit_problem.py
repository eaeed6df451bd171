# SPDX-License-Identifier: MIT
"""Makes arrays for a case of `kv_commit`."""

import jax.numpy as jnp
import numpy as np


def make(case, seed=0, dtype=jnp.float32):
  """Arguments of `api.kv_commit` by name, as numpy arrays.

  Rows of the pools that hold no committed token are NaN, and a commit must
  leave them so; rows of nodes off the path are NaN too.
  """
  rng = np.random.default_rng(seed)
  rows = len(case.lengths)
  num_pages = rows * case.pages_per_row + 2
  page_ids = rng.permutation(num_pages)[: rows * case.pages_per_row]
  page_ids = page_ids.reshape(rows, case.pages_per_row).astype(np.int32)
  path = np.stack(
    [
      np.sort(rng.permutation(case.num_nodes)[: case.path_len])
      for _ in range(rows)
    ]
  ).astype(np.int32)
  pool = (
    case.num_layers,
    num_pages,
    case.num_kv_heads,
    case.page_size,
    case.head_width,
  )
  pools = [np.full(pool, np.nan, np.float32) for _ in range(2)]
  nodes = (case.num_layers, rows, case.num_nodes, *pool[2::2])
  news = [np.full(nodes, np.nan, np.float32) for _ in range(2)]
  for row, length in enumerate(case.lengths):
    for one in pools:
      for position in range(length):
        slot, offset = divmod(position, case.page_size)
        one[:, page_ids[row, slot], :, offset] = rng.normal(
          size=(case.num_layers, *pool[2::2])
        )
    taken = path[row, : case.num_rows[row]]
    for one in news:
      one[:, row, taken] = rng.normal(size=one[:, row, taken].shape)
  for row, slot in case.missing:
    page_ids[row, slot] = -1
  return dict(
    k_pages=pools[0].astype(dtype),
    v_pages=pools[1].astype(dtype),
    k=news[0].astype(dtype),
    v=news[1].astype(dtype),
    path=path,
    page_ids=page_ids,
    lengths=np.array(case.lengths, np.int32),
    num_rows=np.array(case.num_rows, np.int32),
  )


def is_dropped(case):
  """Whether a row has nowhere to go, told from the case alone."""
  capacity = case.pages_per_row * case.page_size
  for row, (length, count) in enumerate(
    zip(case.lengths, case.num_rows, strict=True)
  ):
    for position in range(length, length + count):
      slot = position // case.page_size
      if position >= capacity or (row, slot) in case.missing:
        return True
  return False
