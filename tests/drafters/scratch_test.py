# SPDX-License-Identifier: MIT
"""Attention over pages and scratch rows equals dense attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.cache import paged
from jspec.drafters import scratch

B, N, K, H = 2, 4, 2, 8
LENGTHS = np.array([5, 0])
WIDTH, NUM_LEVELS = 3, 12  # 36 rows: two words.
FIRST = 33


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _array(rng, *shape):
  return jnp.asarray(rng.normal(size=shape), jnp.float32)


def _dense(q, keys, values):
  """One query [N H] over the keys it sees [S K H]."""
  out = np.zeros((N, H))
  for head in range(N):
    k, v = keys[:, head // (N // K)], values[:, head // (N // K)]
    scores = k @ q[head] / np.sqrt(H)
    weights = np.exp(scores - scores.max())
    out[head] = weights / weights.sum() @ v
  return out


def test_node_sees_the_committed_rows_and_its_ancestors():
  rng = np.random.default_rng(0)
  pages = paged.Pages(_array(rng, 2, 4, K, 4, H), _array(rng, 2, 4, K, 4, H))
  table = paged.contiguous_table(B, 2)
  table = paged.advance(table, jnp.asarray(LENGTHS), jnp.zeros((), bool))
  size = WIDTH * NUM_LEVELS
  rows = scratch.empty(B, size, pages)
  assert rows.k.shape == (B, size, K, H)
  old = (_array(rng, B, FIRST, K, H), _array(rng, B, FIRST, K, H))
  new = (_array(rng, B, WIDTH, K, H), _array(rng, B, WIDTH, K, H))
  rows = scratch.write(scratch.write(rows, *old, 0), *new, FIRST)
  q = _array(rng, B, WIDTH, N, H)
  seen = [[0, 4, FIRST], [FIRST + 1], [31, 32, FIRST + 2]]
  words = np.zeros((B, WIDTH, 2), np.uint32)
  for node, visible in enumerate(seen):
    for row in visible:
      words[:, node, row // 32] |= np.uint32(1 << row % 32)

  @jax.jit
  def attend(q, rows, pages, table, first):
    return scratch.attend(
      q,
      *rows,
      jnp.asarray(words),
      pages,
      table,
      layer=1,
      first=first,
    )

  got = attend(q, rows, pages, table, jnp.int32(FIRST))
  for b in range(B):
    own = [
      np.asarray(x[1])[np.asarray(table.page_ids[b])]
      .swapaxes(1, 2)
      .reshape(-1, K, H)[: LENGTHS[b]]
      for x in (pages.k, pages.v)
    ]
    for node, visible in enumerate(seen):
      keys = np.concatenate([own[0], np.asarray(rows.k[b])[visible]])
      values = np.concatenate([own[1], np.asarray(rows.v[b])[visible]])
      want = _dense(np.asarray(q[b, node]), keys, values)
      np.testing.assert_allclose(got[b, node], want, atol=2e-6)


@pytest.mark.slow
def test_rows_nobody_names_do_not_count():
  rng = np.random.default_rng(1)
  pages = paged.init_pages(1, 2, 4, K, H)
  table = paged.contiguous_table(B, 1)
  rows = scratch.Rows(_array(rng, B, 4, K, H), _array(rng, B, 4, K, H))
  q = _array(rng, B, 1, N, H)
  words = tree.chain_words(B, 4)[:, 2:3]

  def attend(rows):
    return scratch.attend(q, *rows, words, pages, table, layer=0, first=2)

  before = attend(rows)
  later = scratch.Rows(rows.k.at[:, 3].add(5), rows.v.at[:, 3].add(5))
  np.testing.assert_array_equal(before, attend(later))
  earlier = scratch.Rows(rows.k, rows.v.at[:, 1].add(5))
  assert np.abs(before - attend(earlier)).min() > 1e-3
