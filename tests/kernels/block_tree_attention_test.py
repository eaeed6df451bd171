# SPDX-License-Identifier: MIT
"""One suite over implementations and cases, against plain numpy softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec import tree
from jspec.kernels.block_tree_attention import api, cases, check
from tests.kernels import attention_problem

BY_NAME = {case.name: case for case in cases.CASES}
# The Pallas kernels have files of their own: they run in an interpreter here.
HERE = ('reference', 'xla')


def run(arrays, named, implementation):
  static = {name: named[name] for name in ('window',)}
  rest = {name: value for name, value in named.items() if name != 'window'}
  function = jax.jit(
    functools.partial(
      api.block_tree_attention, implementation=implementation, **static
    )
  )
  return function(*arrays, **rest)


@pytest.mark.few(4)
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
@pytest.mark.parametrize('implementation', HERE)
def test_equals_naive_softmax(case, implementation):
  arrays, named = attention_problem.make(case)
  np.testing.assert_allclose(
    run(arrays, named, implementation),
    attention_problem.naive(arrays, named),
    atol=1e-5,
  )


@pytest.mark.parametrize('implementation', HERE)
def test_bfloat16_is_as_close_as_its_rounding(implementation):
  arrays, named = attention_problem.make(
    BY_NAME['window_and_sinks'], dtype=jnp.bfloat16
  )
  got = run(arrays, named, implementation)
  assert got.dtype == jnp.bfloat16
  want = attention_problem.naive(arrays, named)
  np.testing.assert_allclose(got.astype(jnp.float32), want, atol=3e-2)


@pytest.mark.parametrize('implementation', HERE)
def test_a_node_outside_the_ancestors_has_no_influence(implementation):
  arrays, named = attention_problem.make(BY_NAME['chain_ragged'])
  q, k, v, *pools = arrays
  before = run(arrays, named, implementation)
  changed = run(
    (q, k.at[:, 5].add(1.0), v.at[:, 5].add(1.0), *pools),
    named,
    implementation,
  )
  np.testing.assert_array_equal(changed[:, :5], before[:, :5])
  assert np.abs(changed[:, 5:] - before[:, 5:]).min() > 0


@pytest.mark.parametrize('implementation', HERE)
@pytest.mark.parametrize(
  'num_nodes',
  [
    1,
    7,
    33,
    128,
    *(pytest.param(size, marks=pytest.mark.slow) for size in (2, 32, 65)),
  ],
)
def test_a_tree_row_equals_the_chain_of_its_path(num_nodes, implementation):
  """What a leaf sees in a tree is what it sees in the chain to it."""
  case = cases.Case(
    name='',
    lengths=(37, 5),
    num_nodes=num_nodes,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    shape='tree',
  )
  arrays, named = attention_problem.make(case)
  tree_out = run(arrays, named, implementation)
  words = np.asarray(named['ancestors'])
  for row in range(2):
    path = [
      j
      for j in range(num_nodes)
      if words[row, num_nodes - 1, j // 32] >> (j % 32) & 1
    ]
    q, k, v, *pools = arrays
    chain = dict(
      named,
      page_ids=named['page_ids'][row : row + 1],
      lengths=named['lengths'][row : row + 1],
      ancestors=tree.chain_words(1, len(path)),
      depths=None,
    )
    picked = [x[row : row + 1, np.array(path)] for x in (q, k, v)]
    out = run((*picked, *pools), chain, implementation)
    np.testing.assert_allclose(tree_out[row, path], out[0], atol=1e-5)


@pytest.mark.parametrize('implementation', HERE)
def test_cascade_equals_the_expanded_problem(implementation):
  """Branches over one shared prefix are rows that each have the prefix."""
  case = BY_NAME['cascade']
  arrays, named = attention_problem.make(case)
  shared = run(arrays, named, implementation)
  branch_len = (case.num_nodes - 1) // case.num_branches
  q, k, v, *pools = arrays
  for branch in range(case.num_branches):
    nodes = [0, *range(1 + branch * branch_len, 1 + (branch + 1) * branch_len)]
    picked = [x[:, np.array(nodes)] for x in (q, k, v)]
    expanded = dict(
      named, ancestors=tree.chain_words(2, len(nodes)), depths=None
    )
    out = run((*picked, *pools), expanded, implementation)
    np.testing.assert_allclose(shared[:, nodes], out, atol=1e-5)


@pytest.mark.few(3)
@pytest.mark.parametrize('implementation', HERE)
@pytest.mark.parametrize(
  ('name', 'empty'),
  [
    ('unequal_depth', ()),
    ('window_and_sinks', ()),
    # Rows that take no part have no nodes; the last has no token either.
    ('unequal_depth', (0, -1)),
    ('window_and_sinks', (-1,)),
  ],
)
def test_packed_rows_equal_rows(name, empty, implementation):
  case = BY_NAME[name]
  arrays, named = attention_problem.make(case)
  counts = list(case.live_nodes or (3, 8, 1))
  for row in empty:
    counts[row] = 0
  if empty:
    named['lengths'] = named['lengths'].at[-1].set(0)
  named['num_nodes'] = jnp.asarray(counts, jnp.int32)
  want = run(arrays, named, implementation)
  starts = np.concatenate([[0], np.cumsum(counts)])
  num_tokens = int(starts[-1]) + 5  # Padding behind the last row.

  def tokens(x):
    live = [np.asarray(x[row, :count]) for row, count in enumerate(counts)]
    # Nothing is known of padding; words of 0 see not even themselves.
    garbage = np.full((5, *x.shape[2:]), 0 if empty else 7, x.dtype)
    return jnp.asarray(np.concatenate([*live, garbage]))

  q, k, v, *pools = arrays
  static = dict(
    max_nodes=case.num_nodes,
    window=named['window'],
    implementation=implementation,
  )
  got = jax.jit(functools.partial(api.packed, **static))(
    *map(tokens, (q, k, v)),
    *pools,
    starts=jnp.asarray(starts, jnp.int32),
    ancestors=tokens(named['ancestors']),
    depths=tokens(named['depths']),
    **{name: named[name] for name in ('layer', 'page_ids', 'lengths', 'sinks')},
  )
  assert got.shape[0] == num_tokens
  for row, count in enumerate(counts):
    np.testing.assert_allclose(
      got[starts[row] : starts[row + 1]], want[row, :count], atol=1e-6
    )
  np.testing.assert_array_equal(got[starts[-1] :], 0)


def test_an_implementation_that_does_not_exist_is_refused():
  arrays, named = attention_problem.make(BY_NAME['plain_one_row'])
  with pytest.raises(ValueError, match='choose from'):
    api.block_tree_attention(*arrays, **named, implementation='cuda')


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    (dict(window=0), 'whole number from 1'),
    (dict(depths=None), 'a window needs depths'),
    (dict(q=jnp.zeros((6, 9, 5, 64))), '5 query heads do not divide among 2'),
    (dict(q=jnp.zeros((6, 9, 4, 64), jnp.int8)), 'q is int8; cast it'),
    (dict(q=jnp.zeros((6, 9, 4, 1026))), '1026 wide; at most 1024'),
    (dict(q=jnp.zeros((6, 2000, 4, 64))), '2000 nodes in a row; at most 1024'),
    (dict(k=jnp.zeros((6, 8, 2, 64))), r'k has shape \(6, 8, 2, 64\)'),
    (dict(lengths=jnp.zeros(5, jnp.int32)), r'lengths has shape \(5,\)'),
    (
      dict(ancestors=jnp.zeros((6, 9, 1), jnp.int32)),
      'pack them as uint32',
    ),
  ],
)
def test_bad_input_is_refused_before_anything_compiles(changes, message):
  # Called itself: under test, the annotations of the API would refuse first.
  arrays, named = attention_problem.make(BY_NAME['window'])
  names = ('q', 'k', 'v', 'k_pages', 'v_pages')
  good = dict(zip(names, arrays, strict=True), **named)
  check.check(**good)
  with pytest.raises(ValueError, match=message):
    check.check(**(good | changes))


@pytest.mark.few(2)
@pytest.mark.parametrize('lengths', [(5, 0), (1, 0), (0, 5), (5, 3), (0, 0)])
def test_lengths_may_be_known_when_compiled(lengths):
  rng = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  heads = normal(2, 3, 4, 8), normal(2, 3, 2, 8), normal(2, 3, 2, 8)
  pools = normal(1, 8, 2, 4, 8), normal(1, 8, 2, 4, 8)

  def attend(implementation, *heads):
    return api.block_tree_attention(
      *heads,
      *pools,
      layer=jnp.int32(0),
      page_ids=jnp.arange(8, dtype=jnp.int32).reshape(2, 4),
      lengths=jnp.asarray(lengths, jnp.int32),
      ancestors=tree.chain_words(2, 3),
      implementation=implementation,
    )

  got = jax.jit(lambda *heads: attend('xla', *heads))(*heads)
  np.testing.assert_allclose(got, attend('reference', *heads), atol=1e-5)
