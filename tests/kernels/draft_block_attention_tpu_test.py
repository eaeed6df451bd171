# SPDX-License-Identifier: MIT
"""The TPU kernels of draft blocks in TPU interpret mode."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.draft_block_attention import api, cases, spans, tpu_tiles
from tests.kernels import draft_block_problem as problem
from tests.kernels import tpu_interpreter

NAMES = ('out', 'q', 'k', 'v', 'context_k', 'context_v')
SMALL = cases.Case(
  name='two_tiles_odd',
  rows=1,
  num_anchors=19,
  block_size=7,
  num_heads=6,
  num_kv_heads=2,
  head_width=24,
  context_len=301,
  num_documents=2,
)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  """Several tiles and blocks even for a small problem."""
  monkeypatch.setattr(tpu_tiles, 'MAX_BLOCK_LEN', 128)
  monkeypatch.setattr(tpu_tiles, 'MAX_QUERIES', 128)


def run(arrays, named, implementation):
  return problem.value_and_gradients(
    lambda *arrays: api.draft_block_attention(
      *arrays, **named, implementation=implementation
    ),
    arrays,
  )


def interpreted(arrays, named):
  with tpu_interpreter.running():
    return jax.block_until_ready(run(arrays, named, 'tpu'))


@pytest.mark.parametrize('window', [None, 50])
@pytest.mark.parametrize(
  'dtype', [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)]
)
def test_equals_the_reference_in_value_and_gradient(dtype, window):
  arrays, named = problem.make(dataclasses.replace(SMALL, window=window))
  arrays = tuple(x.astype(dtype) for x in arrays)
  sizes = tpu_tiles.make(arrays[0], arrays[1], arrays[3])
  assert sizes.num_tiles > 1 and sizes.num_blocks > 2
  got = interpreted(arrays, named)
  want = run(tuple(x.astype(jnp.float32) for x in arrays), named, 'reference')
  for name, x, y in zip(NAMES, got, want, strict=True):
    assert x.dtype == dtype
    tolerance = 2e-5 if dtype == jnp.float32 else 0.02 * np.abs(y).max()
    np.testing.assert_allclose(
      x.astype(jnp.float32), y, atol=tolerance, err_msg=name
    )


@pytest.mark.slow
@pytest.mark.parametrize('case', cases.CASES, ids=lambda case: case.name)
def test_equals_the_reference_for_every_case(case):
  arrays, named = problem.make(case)
  got, want = interpreted(arrays, named), run(arrays, named, 'reference')
  for name, x, y in zip(NAMES, got, want, strict=True):
    np.testing.assert_allclose(x, y, atol=2e-5, err_msg=name)


@pytest.mark.slow
def test_blocks_that_no_anchor_sees_are_not_visited():
  case = dataclasses.replace(SMALL, num_documents=1, window=20)
  arrays, named = problem.make(case)
  named['anchors'] = jnp.minimum(named['anchors'] % 60 + 170, 250)
  index = np.arange(case.context_len)[:, None, None]
  hidden = (index < 128) | (index >= 256)
  dirty = (*arrays[:3], *(jnp.where(hidden, jnp.nan, x) for x in arrays[3:]))
  for name, x in zip(NAMES, interpreted(dirty, named), strict=True):
    assert np.all(np.isfinite(x)), name
  out = run(dirty, named, 'reference')[0]
  assert np.any(np.isnan(out)), 'the control visits everything'


@pytest.mark.parametrize('seed', range(3))
def test_visits_cover_what_is_seen_and_little_else(seed):
  case = dataclasses.replace(
    cases.CASES[1], context_len=1000, num_anchors=64, num_documents=4
  )
  arrays, named = problem.make(case, seed=seed)
  sizes = tpu_tiles.make(arrays[0], arrays[1], arrays[3])
  first, end = spans.visible(
    named['anchors'], named['segments'], case.block_size, None
  )
  found = (
    np.asarray(x)
    for x in jax.jit(tpu_tiles.visits, static_argnums=2)(first, end, sizes)
  )
  first_block, stop_block, first_tile, stop_tile = found
  seen = problem.mask(**named, block_size=case.block_size)
  seen = seen.any(2)[..., : case.context_len]
  padding = sizes.num_tiles * sizes.tile_anchors - case.num_anchors
  seen = np.pad(seen, ((0, 0), (0, padding), (0, 0)))
  seen = seen.reshape(case.rows, sizes.num_tiles, -1, case.context_len).any(2)
  for b in range(case.rows):
    for tile in range(sizes.num_tiles):
      where = np.flatnonzero(seen[b, tile])
      if not where.size:
        assert first_block[b, tile] == stop_block[b, tile]
        continue
      assert first_block[b, tile] == where[0] // sizes.block_len
      assert stop_block[b, tile] == where[-1] // sizes.block_len + 1
    for block in range(sizes.num_blocks):
      visitors = [
        tile
        for tile in range(sizes.num_tiles)
        if first_block[b, tile] <= block < stop_block[b, tile]
      ]
      if visitors:
        assert first_tile[b, block] == visitors[0]
        assert stop_tile[b, block] == visitors[-1] + 1
      else:
        assert first_tile[b, block] == stop_tile[b, block]
