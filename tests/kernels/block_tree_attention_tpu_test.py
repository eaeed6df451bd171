# SPDX-License-Identifier: MIT
"""The TPU kernel in TPU interpret mode, and the bytes it moves."""

import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.block_tree_attention import (
  cases,
  ref,
  tpu,
  tpu_blocks,
  tpu_kernel,
)
from tests.kernels import attention_problem, tpu_interpreter

BY_NAME = {case.name: case for case in cases.CASES}
Case = functools.partial(
  cases.Case, num_heads=4, num_kv_heads=2, head_width=64, pages_per_row=3
)
# What only this kernel tells apart: blocks of pages, tiles of nodes, and pages
# whose rows lie on the lanes.
MORE = (
  Case(
    name='chain_of_32',
    lengths=(31, 0),
    num_nodes=32,
    num_heads=8,
    num_kv_heads=8,
    head_width=128,
  ),
  Case(
    name='tree_of_64',
    lengths=(24, 7, 8),
    num_nodes=64,
    page_size=8,
    head_width=128,
    num_kv_heads=1,
    shape='tree',
    live_nodes=(0, 64, 9),
  ),
  Case(
    name='rows_on_lanes',
    lengths=(0, 127, 128, 300),
    num_nodes=9,
    page_size=128,
    shape='tree',
  ),
  Case(
    name='rows_on_lanes_with_window',
    lengths=(5, 300),
    num_nodes=9,
    page_size=128,
    shape='tree',
    window=40,
    has_sinks=True,
    live_nodes=(9, 3),
  ),
  Case(
    name='chunk_of_200',
    lengths=(20, 0),
    num_nodes=200,
    num_kv_heads=4,
    page_size=8,
    window=50,
    live_nodes=(200, 100),
  ),
)

QUICK = {
  'plain_one_row',
  'empty_prefix',
  'chain_ragged',
  'unequal_depth',
  'odd_page_count',
  'window_and_sinks',
  'tree_of_64',
  'rows_on_lanes_with_window',
}


def run(arrays, named, function=tpu.block_tree_attention, **more):
  width = arrays[0].shape[-1]
  static = dict(window=named['window'], scale=width**-0.5, **more)
  rest = {name: x for name, x in named.items() if name != 'window'}
  out = jax.jit(functools.partial(function, **static))(*arrays, **rest)
  return np.asarray(out.astype(jnp.float32))


def interpreted(arrays, named, *, settings=None, **more):
  with tpu_interpreter.running(**(settings or {})) as record:
    return run(arrays, named, **more), record


def problem_of(case, itemsize=4):
  return tpu_blocks.Problem(
    rows=len(case.lengths),
    num_nodes=case.num_nodes,
    num_heads=case.num_heads,
    num_kv_heads=case.num_kv_heads,
    head_width=case.head_width,
    page_size=case.page_size,
    pages_per_row=case.pages_per_row,
    itemsize=itemsize,
  )


def in_order(all_cases):
  """All cases; those whose kind another one stands for are slow."""
  return [
    pytest.param(
      case,
      id=case.name,
      marks=() if case.name in QUICK else pytest.mark.slow,
    )
    for case in all_cases
  ]


@pytest.mark.few(1)
@pytest.mark.parametrize('case', in_order(cases.CASES + MORE))
def test_equals_the_reference_and_reads_each_live_page_once(case):
  arrays, named = attention_problem.make(case)
  got, record = interpreted(arrays, named)
  want = run(arrays, named, ref.block_tree_attention)
  np.testing.assert_allclose(got, want, atol=1e-5)
  for row, live in enumerate(case.live_nodes or ()):
    assert not got[row, live:].any()

  problem, num_pages = problem_of(case), live_pages(case)
  times = problem.num_tiles  # Up to 128 nodes: once.
  page = case.num_kv_heads * case.page_size * case.head_width * 4
  if case.live_nodes is None or times == 1:
    assert record.num_copies == 2 * num_pages * times
    assert record.bytes_copied == 2 * num_pages * page * times
    # The arithmetic that plans and reports rests on the same count.
    blocks = tpu_blocks.choose(problem, case.window)
    rest = tpu_blocks.moved_bytes(problem, blocks, 0)
    moved = tpu_blocks.moved_bytes(problem, blocks, num_pages)
    assert moved - rest == record.bytes_copied


def live_pages(case):
  """Pages that a live node of their row can see, over all rows."""
  live = case.live_nodes or (case.num_nodes,) * len(case.lengths)
  total = 0
  for length, nodes in zip(case.lengths, live, strict=True):
    first = max(length + 1 - case.window, 0) if case.window else 0
    if nodes:
      end = -(-length // case.page_size)
      total += max(end - first // case.page_size, 0)
  return total


@pytest.mark.slow
def test_bfloat16_is_as_close_as_its_rounding():
  case = BY_NAME['window_and_sinks']
  arrays, named = attention_problem.make(case, dtype=jnp.bfloat16)
  got, _ = interpreted(arrays, named)
  want = attention_problem.naive(arrays, named)
  np.testing.assert_allclose(got, want, atol=3e-2)


@pytest.mark.slow
@pytest.mark.parametrize('when', ['on_wait', 'eager'])
def test_small_blocks_and_tiles_give_the_same_whenever_copies_happen(when):
  case = BY_NAME['unequal_depth']
  arrays, named = attention_problem.make(case)
  blocks = tpu_blocks.Blocks(pages=2, queries=16)
  got, _ = interpreted(
    arrays, named, blocks=blocks, settings=dict(dma_execution_mode=when)
  )
  want = run(arrays, named, ref.block_tree_attention)
  np.testing.assert_allclose(got, want, atol=1e-5)


@pytest.mark.slow
def test_a_wrong_ancestor_word_shows():
  arrays, named = attention_problem.make(BY_NAME['tree_two_words'])
  words = named['ancestors']
  got, _ = interpreted(
    arrays, named | dict(ancestors=words.at[0, 40, 0].add(1 << 31))
  )
  want = run(arrays, named, ref.block_tree_attention)
  assert np.abs(got - want)[0, 40].max(-1).min() > 1e-3
  np.testing.assert_allclose(
    np.delete(got[0], 40, 0), np.delete(want[0], 40, 0), atol=1e-5
  )


@pytest.mark.slow
def test_garbage_in_the_last_page_leaks_from_a_kernel_that_keeps_it():
  arrays, named = attention_problem.make(BY_NAME['chain_ragged'])
  with mock.patch.object(tpu_kernel, 'blank', lambda values, is_live: values):
    got, _ = interpreted(arrays, named)
  assert np.isnan(got[1]).all()  # One token in a page of NaN.
  assert not np.isnan(got[0]).any()  # No page.


def test_cascade_equals_dense_attention_on_every_branch():
  case = BY_NAME['cascade']
  arrays, named = attention_problem.make(case)
  got, _ = interpreted(arrays, named)
  branch_len = (case.num_nodes - 1) // case.num_branches
  for branch in range(case.num_branches):
    own = slice(1 + branch * branch_len, 1 + (branch + 1) * branch_len)
    nodes = np.r_[0, own]
    chain = dataclasses.replace(case, shape='chain', num_nodes=len(nodes))
    _, alone = attention_problem.make(chain)
    alone = named | {name: alone[name] for name in ('ancestors', 'depths')}
    cut = (*(x[:, nodes] for x in arrays[:3]), *arrays[3:])
    want = run(cut, alone, ref.block_tree_attention)
    np.testing.assert_allclose(got[:, nodes], want, atol=1e-5)


# --- Bytes -------------------------------------------------------------------


# Rows, nodes, query and key-value heads, width, context, window: what is
# served.
SERVED = [
  (16, 16, 32, 8, 128, 4096, None),
  (64, 1, 32, 8, 128, 4096, None),
  (64, 8, 32, 8, 128, 1024, None),
  (1, 128, 32, 8, 128, 4096, None),
  (1, 64, 64, 8, 64, 4096, None),
  (16, 8, 64, 8, 64, 4096, 128),
  (8, 33, 8, 4, 256, 2048, 1024),
  (16, 8, 9, 3, 64, 512, None),
]


@pytest.mark.parametrize('shape', SERVED, ids=str)
def test_bytes_moved_stay_close_to_the_floor(shape):
  rows, nodes, heads, kv_heads, width, context, window = shape
  for page_size in (32, 128):
    problem = tpu_blocks.Problem(
      rows=rows,
      num_nodes=nodes,
      num_heads=heads,
      num_kv_heads=kv_heads,
      head_width=width,
      page_size=page_size,
      pages_per_row=context // page_size,
      itemsize=2,
    )
    blocks = tpu_blocks.choose(problem, window)
    pages = rows * tpu_blocks.most_pages(problem, window)
    moved = tpu_blocks.moved_bytes(problem, blocks, pages)
    floor = tpu_blocks.floor_bytes(problem, pages, rows * nodes)
    assert 1 <= moved / floor <= 1.3


# --- What it refuses ---------------------------------------------------------


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(page_size=20), 'pages of 20 rows'),
    (dict(pages_per_row=200_000), 'a table of'),
    (dict(page_size=64 * 1024, pages_per_row=1, num_kv_heads=4), 'of VMEM'),
  ],
)
def test_what_does_not_fit_is_refused_with_limit_and_mend(change, message):
  case = dataclasses.replace(BY_NAME['empty_prefix'], **change)
  shapes = jax.eval_shape(lambda: attention_arrays(case))
  with pytest.raises(NotImplementedError, match=f'{message}.*(use|cast)'):
    jax.eval_shape(
      functools.partial(
        tpu.block_tree_attention, window=None, sinks=None, scale=1.0
      ),
      *shapes[0],
      **shapes[1],
    )


def attention_arrays(case, dtype=jnp.float32):
  """Shapes only: the arrays of a case that would be too large to make."""
  rows, nodes, width = len(case.lengths), case.num_nodes, case.head_width
  pool = (2, 1, case.num_kv_heads, case.page_size, width)
  arrays = (
    jnp.zeros((rows, nodes, case.num_heads, width), dtype),
    *(jnp.zeros((rows, nodes, case.num_kv_heads, width), dtype),) * 2,
    *(jnp.zeros(pool, dtype),) * 2,
  )
  return arrays, dict(
    layer=jnp.int32(0),
    page_ids=jnp.zeros((rows, case.pages_per_row), jnp.int32),
    lengths=jnp.zeros((rows,), jnp.int32),
    ancestors=jnp.zeros((rows, nodes, -(-nodes // 32)), jnp.uint32),
    num_nodes=None,
    depths=None,
  )


def test_mixed_dtypes_are_refused():
  arrays, named = attention_problem.make(BY_NAME['empty_prefix'])
  mixed = (*(x.astype(jnp.bfloat16) for x in arrays[:3]), *arrays[3:])
  with pytest.raises(NotImplementedError, match='bfloat16.*cast'):
    run(mixed, named)


def test_less_vmem_means_smaller_blocks():
  problem = problem_of(BY_NAME['one_row_long'])
  large = tpu_blocks.choose(problem)
  small = tpu_blocks.choose(problem, vmem_bytes=2**20)
  assert small.pages < large.pages
  assert tpu_blocks.vmem(problem, small) <= 2**20
