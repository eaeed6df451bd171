# SPDX-License-Identifier: MIT
"""Problems of block-tree attention that are timed, with their bytes and FLOPs.

A problem runs once a layer, as a round does, over pools that hold the live
pages and nothing else. Its floor is what must be moved: each live page once,
queries, keys, values and outputs of the nodes once, one word for every 32 nodes
of a node.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jspec import tree
from jspec.kernels.block_tree_attention import api, cases
from jspec.typing import Array


@dataclasses.dataclass(frozen=True)
class Problem:
  """A case with arrays.

  Attributes:
    case: its size.
    run: computes all layers once, with a named implementation.
    num_bytes: the least that must be moved, all layers together.
    num_flops: multiplications and additions of the products.
  """

  case: cases.Case
  run: Callable[..., Array]
  num_bytes: int
  num_flops: int


def make(case: cases.Case, dtype=jnp.float32) -> Problem:
  """Random arrays for a case."""
  rng = np.random.default_rng(0)
  rows, nodes = len(case.lengths), case.num_nodes
  live = [-(-length // case.page_size) for length in case.lengths]
  page_ids = np.full((rows, case.pages_per_row), -1, np.int32)
  for row, count in enumerate(live):
    page_ids[row, :count] = sum(live[:row]) + np.arange(count)

  def random(*shape):
    return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)

  width, kv_heads = case.head_width, case.num_kv_heads
  pool = (case.num_layers, max(sum(live), 1), kv_heads, case.page_size, width)
  arrays = (
    random(rows, nodes, case.num_heads, width),
    random(rows, nodes, kv_heads, width),
    random(rows, nodes, kv_heads, width),
    random(*pool),
    random(*pool),
  )
  named = dict(
    page_ids=jnp.asarray(page_ids),
    lengths=jnp.asarray(case.lengths, jnp.int32),
    ancestors=tree.ancestor_words(jnp.asarray(_parents(case))),
  )

  @functools.partial(jax.jit, static_argnames='implementation')
  def run(arrays, named, implementation):
    def body(layer, out):
      q = arrays[0] + out * 1e-6  # Every layer waits for the one before.
      return api.block_tree_attention(
        q, *arrays[1:], layer=layer, implementation=implementation, **named
      )

    return jax.lax.fori_loop(0, case.num_layers, body, arrays[0])

  itemsize = jnp.dtype(dtype).itemsize
  cached = 2 * sum(live) * case.page_size * kv_heads * width
  own = rows * nodes * width * (2 * case.num_heads + 2 * kv_heads)
  words = named['ancestors'].nbytes
  seen = sum(length + nodes for length in case.lengths)
  return Problem(
    case=case,
    run=lambda implementation=None: run(arrays, named, implementation),
    num_bytes=case.num_layers * ((cached + own) * itemsize + words),
    num_flops=case.num_layers * 4 * nodes * case.num_heads * width * seen,
  )


def _parents(case):
  rows, nodes = len(case.lengths), case.num_nodes
  parents = np.arange(-1, nodes - 1, dtype=np.int32)
  if case.shape == 'branches':
    parents[1 :: (nodes - 1) // case.num_branches] = 0
  return np.tile(parents, (rows, 1))
