# SPDX-License-Identifier: MIT
"""Long rows get what one matrix of scores gives, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.nn import dense_attention, packed_attention, spread
from tests.nn import meshes

B, S, N, K, H = 2, 16, 4, 2, 8
# Two documents and padding; and one document that fills the row.
SEGMENTS = jnp.asarray([[1] * 6 + [2] * 7 + [0] * 3, [1] * 16])
POSITIONS = jnp.asarray(
  [[*range(6), *range(7), *range(3)], list(range(16))], jnp.int32
)


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def arrays():
  rng = np.random.default_rng(0)
  shapes = (B, S, N, H), (B, S, K, H), (B, S, K, H), (N,)
  return [jnp.asarray(rng.normal(size=x), jnp.float32) for x in shapes]


def attention(window, scale, has_sinks):
  def run(q, k, v, sinks):
    attend = packed_attention.of(POSITIONS, SEGMENTS, (window,))
    out = attend(window, q, k, v, scale, sinks if has_sinks else None)
    return jnp.where(SEGMENTS[..., None, None] > 0, out, 0)

  return run


def both(function, monkeypatch, where=None):
  """Value and gradients as one matrix and, maybe on a mesh, by blocks."""
  want = meshes.values_and_grads(function, arrays())
  monkeypatch.setattr(packed_attention, 'LONGEST_DENSE', S - 1)
  monkeypatch.setattr(
    dense_attention, 'attend', lambda *_, **__: pytest.fail('a matrix')
  )
  return want, meshes.values_and_grads(function, arrays(), where)


def assert_equal(want, got):
  for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True):
    np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
  ('window', 'scale', 'has_sinks'),
  [(None, None, False), (3, 0.5, True)],
)
def test_blocks_equal_a_matrix(window, scale, has_sinks, monkeypatch):
  function = attention(window, scale, has_sinks)
  assert_equal(*both(function, monkeypatch))


@pytest.mark.slow
@pytest.mark.parametrize(
  'axes',
  [
    {'sequence': 8},  # The context is gathered.
    {'sequence': 4},
    {'sequence': 2, 'model': 2},
  ],
)
def test_blocks_on_a_mesh_equal_a_matrix(axes, monkeypatch):
  where = meshes.spread_over(**axes)
  assert_equal(*both(attention(5, None, True), monkeypatch, where))


def test_a_sink_keeps_its_digits_in_bfloat16(monkeypatch):
  q, k, v, _ = (x.astype(jnp.bfloat16) for x in arrays())
  sinks = jnp.full((N,), 9.03, jnp.float32)  # 9 in bfloat16.
  v = jnp.ones_like(v)
  monkeypatch.setattr(packed_attention, 'LONGEST_DENSE', 0)

  @jax.jit
  def run(q, k, v):
    attend = packed_attention.of(POSITIONS, SEGMENTS, (None,))
    return attend(None, q, k, v, None, sinks)

  out = run(0 * q, k, v)
  # The first token: itself and the sink.
  want = 1 / (1 + np.exp(9.03))
  np.testing.assert_allclose(np.float32(out[:, 0]), want, rtol=5e-3)


def test_short_rows_are_one_matrix(monkeypatch):
  monkeypatch.setattr(
    packed_attention, '_blockwise', lambda *_: pytest.fail('blocks')
  )
  q, k, v, sinks = arrays()
  got = attention(None, None, True)(q, k, v, sinks)
  mask = dense_attention.visible(POSITIONS, SEGMENTS, None)
  want = dense_attention.attend(q, k, v, mask, sinks=sinks)
  np.testing.assert_array_equal(got[1], want[1])
  assert spread.now() is None


@pytest.mark.parametrize('num_blocks', [2, 3, 16])
@pytest.mark.parametrize(
  ('window', 'scale', 'has_sinks'), [(None, None, False), (3, 0.5, True)]
)
def test_blocks_of_queries_equal_a_matrix(
  window, scale, has_sinks, num_blocks, monkeypatch
):
  monkeypatch.setattr(packed_attention, '_FEWEST_TOKENS', 1)
  function, found = attention(window, scale, has_sinks), []
  for most in (1, num_blocks):
    monkeypatch.setattr(packed_attention, '_MOST_BLOCKS', most)
    found.append(meshes.values_and_grads(function, arrays()))
  assert_equal(*found)


def test_blocks_of_queries_see_no_key_they_need_not():
  blocks = list(packed_attention._blocks(300, None))
  assert blocks == [(i, min(i + 64, 300), 0) for i in range(0, 300, 64)]
  blocks = list(packed_attention._blocks(300, 32))
  assert [first for _, _, first in blocks] == [0, 33, 97, 161, 225]
  assert len(list(packed_attention._blocks(4096, None))) == 8
  # Devices that share out tokens have blocks already.
  with spread.over(meshes.spread_over(sequence=2)):
    assert list(packed_attention._blocks(300, None)) == [(0, 300, 0)]


def test_no_array_of_a_long_row_is_quadratic():
  length = 2 * packed_attention.LONGEST_DENSE
  row = jax.ShapeDtypeStruct((1, length), jnp.int32)
  q, k = (jax.ShapeDtypeStruct((1, length, n, H), jnp.float32) for n in (N, K))

  def run(positions, segments, q, k, v):
    attend = packed_attention.of(positions, segments, (None,))
    return attend(None, q, k, v, None, None)

  program = jax.jit(run).lower(row, row, q, k, k).compile()
  assert program.memory_analysis().temp_size_in_bytes < length**2 / 8
