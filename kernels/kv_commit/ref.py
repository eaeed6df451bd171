# SPDX-License-Identifier: MIT
"""Cache writes, one row after the other: the specification."""

import jax
import jax.numpy as jnp


def kv_commit(k_pages, v_pages, k, v, path, page_ids, lengths, num_rows):
  """Writes every accepted row to its place; says if one had no page.

  Same contract as `api.kv_commit`.
  """
  num_steps, (num_pages, page_size) = path.shape[1], k_pages.shape[1:4:2]
  num_slots = page_ids.shape[1]

  def write(n, state):
    k_pages, v_pages, dropped = state
    row, i = n // num_steps, n % num_steps
    position = lengths[row] + i
    slot = position // page_size
    page = page_ids[row, jnp.minimum(slot, num_slots - 1)]
    has_page = (slot < num_slots) & (page >= 0)
    is_live = i < num_rows[row]
    # Past the pool on purpose where nothing is to be written.
    page = jnp.where(is_live & has_page, page, num_pages)
    node, at = path[row, i], position % page_size
    k_pages = k_pages.at[:, page, :, at].set(k[:, row, node], mode='drop')
    v_pages = v_pages.at[:, page, :, at].set(v[:, row, node], mode='drop')
    return k_pages, v_pages, dropped | (is_live & ~has_page)

  arrays = (jnp.asarray(x) for x in (k, v, path, page_ids, lengths, num_rows))
  k, v, path, page_ids, lengths, num_rows = arrays
  state = (jnp.asarray(k_pages), jnp.asarray(v_pages), jnp.zeros((), bool))
  return jax.lax.fori_loop(0, path.size, write, state)
