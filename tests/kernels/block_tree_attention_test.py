# SPDX-License-Identifier: MIT
"""One suite over implementations and cases, against plain numpy softmax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.kernels.block_tree_attention import api, cases


def make_problem(case, seed=0):
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
  k_pages = rng.normal(size=pool).astype(np.float32)
  v_pages = rng.normal(size=pool).astype(np.float32)
  for row in range(rows):
    for position in range(case.pages_per_row * case.page_size):
      if position >= lengths[row]:
        slot = position // case.page_size, position % case.page_size
        k_pages[:, page_ids[row, slot[0]], :, slot[1]] = np.nan
        v_pages[:, page_ids[row, slot[0]], :, slot[1]] = np.nan
    live = -(-lengths[row] // case.page_size)
    page_ids[row, live:] = -1

  def nodes(heads):
    shape = (rows, case.num_nodes, heads, case.head_width)
    return rng.normal(size=shape).astype(np.float32)

  if case.shape == 'block':
    words = tree.block_words(rows, case.num_nodes)
  else:
    parents = np.arange(-1, case.num_nodes - 1)[None].repeat(rows, 0)
    if case.shape == 'tree':
      for node in range(1, case.num_nodes):
        parents[:, node] = rng.integers(0, node, rows)
    words = tree.ancestor_words(jnp.asarray(parents, jnp.int32))
  arrays = (
    nodes(case.num_heads),
    nodes(case.num_kv_heads),
    nodes(case.num_kv_heads),
    k_pages,
    v_pages,
  )
  named = dict(
    layer=jnp.int32(1),
    page_ids=jnp.asarray(page_ids),
    lengths=jnp.asarray(lengths),
    ancestors=words,
  )
  return tuple(map(jnp.asarray, arrays)), named


def naive(arrays, named):
  """Softmax attention written node by node."""
  q, k, v, k_pages, v_pages = map(np.asarray, arrays)
  words, page_ids = (
    np.asarray(named['ancestors']),
    np.asarray(named['page_ids']),
  )
  page_size = k_pages.shape[3]
  out = np.zeros_like(q)
  groups = q.shape[2] // k.shape[2]
  for row, length in enumerate(np.asarray(named['lengths'])):
    where = [
      (page_ids[row, p // page_size], p % page_size) for p in range(length)
    ]
    for node in range(q.shape[1]):
      seen = [
        j
        for j in range(q.shape[1])
        if words[row, node, j // 32] >> (j % 32) & 1
      ]
      for head in range(q.shape[2]):
        kv = head // groups
        keys = [k_pages[1, p, kv, r] for p, r in where]
        values = [v_pages[1, p, kv, r] for p, r in where]
        keys = np.stack(keys + [k[row, j, kv] for j in seen])
        values = np.stack(values + [v[row, j, kv] for j in seen])
        scores = keys @ q[row, node, head] / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[row, node, head] = weights @ values / weights.sum()
  return out


@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize('implementation', sorted(api.IMPLEMENTATIONS))
def test_equals_naive_softmax(case, implementation):
  arrays, named = make_problem(case)
  run = jax.jit(
    lambda arrays, named: api.block_tree_attention(
      *arrays, **named, implementation=implementation
    )
  )
  np.testing.assert_allclose(
    run(arrays, named), naive(arrays, named), atol=2e-5
  )


@pytest.mark.parametrize('implementation', sorted(api.IMPLEMENTATIONS))
def test_a_node_outside_the_ancestors_has_no_influence(implementation):
  arrays, named = make_problem(cases.CASES[2])
  q, k, v, *pools = arrays
  changed = api.block_tree_attention(
    q,
    k.at[:, 5].add(1.0),
    v.at[:, 5].add(1.0),
    *pools,
    **named,
    implementation=implementation,
  )
  before = api.block_tree_attention(
    *arrays, **named, implementation=implementation
  )
  np.testing.assert_array_equal(changed[:, :5], before[:, :5])
  assert np.abs(changed[:, 5:] - before[:, 5:]).min() > 0


def test_named_implementation_that_does_not_exist_is_refused():
  arrays, named = make_problem(cases.CASES[0])
  with pytest.raises(ValueError, match='choose from'):
    api.block_tree_attention(*arrays, **named, implementation='cuda')
