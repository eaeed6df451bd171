# SPDX-License-Identifier: MIT
"""The pages' only writer, against a row-by-row reference."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.kv_commit import api, ref


def make_problem(seed, lengths, num_rows, num_nodes=6, page_size=4):
  rng = np.random.default_rng(seed)
  rows, pages_per_row = len(lengths), 5
  num_pages = rows * pages_per_row + 2
  pool = (3, num_pages, 2, page_size, 8)
  nodes = (3, rows, num_nodes, 2, 8)
  page_ids = rng.permutation(num_pages)[: rows * pages_per_row]
  path = np.sort(
    np.stack([rng.permutation(num_nodes)[:5] for _ in range(rows)]), axis=1
  )
  return dict(
    k_pages=rng.normal(size=pool).astype(np.float32),
    v_pages=rng.normal(size=pool).astype(np.float32),
    k=rng.normal(size=nodes).astype(np.float32),
    v=rng.normal(size=nodes).astype(np.float32),
    path=path.astype(np.int32),
    page_ids=page_ids.reshape(rows, pages_per_row).astype(np.int32),
    lengths=np.array(lengths, np.int32),
    num_rows=np.array(num_rows, np.int32),
  )


@pytest.mark.parametrize('seed', range(4))
def test_rows_land_behind_the_prefix_across_pages(seed):
  problem = make_problem(seed, lengths=(0, 3, 7, 15), num_rows=(5, 2, 0, 4))
  expected = ref.kv_commit(**problem)
  got = jax.jit(api.kv_commit)(**jax.tree.map(jnp.asarray, problem))
  for ours, theirs in zip(got, expected, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert not got[2]
  changed = np.any(expected[0] != problem['k_pages'], axis=(0, 2, 4))
  assert changed.sum() == 5 + 2 + 0 + 4


def test_row_without_a_page_sets_the_flag_and_spares_the_others():
  problem = make_problem(0, lengths=(6, 18, 3), num_rows=(3, 4, 3))
  problem['page_ids'][0, 2] = -1  # Positions 8 ..: the third row has no page.
  expected = ref.kv_commit(**problem)
  got = jax.jit(api.kv_commit)(**jax.tree.map(jnp.asarray, problem))
  for ours, theirs in zip(got, expected, strict=True):
    np.testing.assert_array_equal(ours, theirs)
  assert got[2]
