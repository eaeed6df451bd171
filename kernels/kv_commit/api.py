# SPDX-License-Identifier: MIT
"""`kv_commit`: the only writer of a paged key-value pool.

Rows `path[b, :num_rows[b]]` of the round's nodes go to the positions
`lengths[b], lengths[b] + 1, ...` of row b, across page borders:

  lengths=3, path=[0, 2, 4], num_rows=3:  nodes 0 2 4  ->  positions 3 4 5

Verification never wrote anything, so there is nothing to roll back.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def kv_commit(
  k_pages: Float[Array, 'L P K R H'],
  v_pages: Float[Array, 'L P K R H'],
  k: Float[Array, 'L B T K H'],
  v: Float[Array, 'L B T K H'],
  path: Int[Array, 'B G'],
  page_ids: Int[Array, 'B M'],
  lengths: Int[Array, 'B'],
  num_rows: Int[Array, 'B'],
) -> tuple[
  Float[Array, 'L P K R H'], Float[Array, 'L P K R H'], Bool[Array, '']
]:
  """Writes the rows of the accepted path directly behind the prefix.

  Args:
    k_pages: key pool; donate it, so that the write happens in place.
    v_pages: value pool.
    k: keys of the round's nodes, rotated.
    v: values of the round's nodes.
    path: node indices, anchor first; entries from `num_rows` on are ignored.
    page_ids: pages of each row in order of position, -1 where it owns none.
    lengths: committed tokens of each row before the write.
    num_rows: rows to write.

  Returns:
    Both pools, and whether any row had no page to go to (nothing is written
    for such a row's missing pages; it must not pass unnoticed).
  """
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
