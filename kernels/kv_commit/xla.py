# SPDX-License-Identifier: MIT
"""XLA: one scatter for each pool, in place when the pool is donated."""

import jax.numpy as jnp


def kv_commit(k_pages, v_pages, k, v, path, page_ids, lengths, num_rows):
  """Same contract as `api.kv_commit`."""
  num_pages, page_size = k_pages.shape[1], k_pages.shape[3]
  steps = jnp.arange(path.shape[1], dtype=lengths.dtype)
  positions = lengths[:, None] + steps
  slots = positions // page_size
  pages = jnp.take_along_axis(
    page_ids, jnp.minimum(slots, page_ids.shape[1] - 1), axis=1
  )
  is_live = steps < num_rows[:, None]
  has_page = (slots < page_ids.shape[1]) & (pages >= 0)
  # Out of range on purpose where nothing is to be written: `drop` skips it.
  pages = jnp.where(is_live & has_page, pages, num_pages).reshape(-1)
  offsets = (positions % page_size).reshape(-1)

  def write(pool, rows):
    rows = jnp.take_along_axis(rows, path[None, :, :, None, None], axis=2)
    rows = rows.reshape(rows.shape[0], -1, *rows.shape[3:])
    # Advanced indices around a slice come first: [B * G, L, K, H].
    rows = rows.swapaxes(0, 1).astype(pool.dtype)
    return pool.at[:, pages, :, offsets].set(rows, mode='drop')

  return (
    write(k_pages, k),
    write(v_pages, v),
    jnp.any(is_live & ~has_page),
  )
