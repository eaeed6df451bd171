# SPDX-License-Identifier: MIT
"""The cache as a value: commits append, other rows and pools stay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jspec.cache import paged


def rows_at(pages, table, row, count):
  page_size = pages.k.shape[3]
  return np.stack(
    [
      pages.k[:, table.page_ids[row, p // page_size], :, p % page_size]
      for p in range(count)
    ],
    axis=1,
  )


def test_commits_in_any_chunks_equal_one_commit():
  k = jax.random.normal(jax.random.key(0), (2, 2, 11, 3, 4))
  empty = paged.PagedCache(
    paged.init_pages(2, 8, 4, 3, 4), paged.contiguous_table(2, 4)
  )
  path = jnp.broadcast_to(jnp.arange(11), (2, 11))
  once = empty.commit(k, 2 * k, path, jnp.array([11, 7]))
  chunked = empty
  for begin, num in ((0, [3, 5]), (3, [4, 2]), (7, [4, 0])):
    start = jnp.array([[begin], [[0, 5, 7][begin // 3]]])
    chunked = chunked.commit(
      k, 2 * k, jnp.minimum(start + jnp.arange(5), 10), jnp.array(num)
    )
  np.testing.assert_array_equal(once.table.lengths, [11, 7])
  np.testing.assert_array_equal(chunked.table.lengths, [11, 7])
  for row, count in ((0, 11), (1, 7)):
    expected = rows_at(once.pages, once.table, row, count)
    np.testing.assert_array_equal(expected, k[:, row, :count])
    np.testing.assert_array_equal(
      rows_at(chunked.pages, chunked.table, row, count), expected
    )


def test_a_row_beyond_its_pages_is_flagged_and_stays_flagged():
  cache = paged.PagedCache(
    paged.init_pages(1, 2, 2, 1, 1), paged.contiguous_table(1, 1)
  )
  k = jnp.ones((1, 1, 3, 1, 1))
  path = jnp.arange(3)[None]
  full = cache.commit(k, k, path, jnp.array([2]))
  assert not full.table.dropped
  over = full.commit(k, k, path, jnp.array([1]))
  assert over.table.dropped
  again = dataclasses.replace(
    over, table=dataclasses.replace(over.table, lengths=jnp.array([0]))
  ).commit(k, k, path, jnp.array([1]))
  assert again.table.dropped
