# SPDX-License-Identifier: MIT
"""Prefix attention equals dense attention, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jspec.kernels.draft_block_attention import blockwise
from jspec.nn import prefix_attention

B, R, T, U, S, N, K, H = 2, 7, 2, 3, 9, 4, 2, 8


@pytest.fixture(autouse=True)
def precise():
  with jax.default_matmul_precision('highest'):
    yield


def _case(u=U, seed=0):
  rng = np.random.default_rng(seed)
  shapes = (
    (B, R, T, N, H),
    (B, R, u, K, H),
    (B, R, u, K, H),
    (B, S, K, H),
    (B, S, K, H),
  )
  arrays = tuple(jnp.asarray(rng.normal(size=s), jnp.float32) for s in shapes)
  masks = dict(
    own=jnp.asarray(rng.random((B, R, T, u)) < 0.5),
    # Row 0: no row. Row 1: no context. Row 2 sees all there is.
    limits=jnp.asarray([[-1, 0, 4, 3, 4, 7, 9], [-1, 0, 5, 1, 2, 8, 5]]),
    row_segments=jnp.asarray([[1, 1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 1, 3, 0]]),
    segments=jnp.asarray(
      [[1, 1, 1, 1, 2, 2, 2, 0, 0], [1, 1, 1, 1, 1, 2, 2, 2, 0]]
    ),
  )
  return arrays, masks


def _dense(q, k, v, context_k, context_v, own, limits, row_segments, segments):
  """The same in one matrix, a head at a time."""
  groups = N // K
  keys = jnp.concatenate(
    [jnp.broadcast_to(context_k[:, None], (B, R, *context_k.shape[1:])), k], 2
  )
  values = jnp.concatenate(
    [jnp.broadcast_to(context_v[:, None], (B, R, *context_v.shape[1:])), v], 2
  )
  is_row = (limits >= 0) & (row_segments > 0)
  far = row_segments[..., None] == segments[:, None]
  far = far & (jnp.arange(S) < limits[..., None])
  far = jnp.broadcast_to(far[:, :, None], (B, R, T, S))
  mask = jnp.concatenate([far, own], -1) & is_row[..., None, None]
  heads = []
  for head in range(N):
    key, value = (x[..., head // groups, :] for x in (keys, values))
    scores = jnp.einsum(
      'brth,brsh->brts', q[..., head, :], keys[..., head // groups, :]
    )
    scores = jnp.where(mask, scores / np.sqrt(H), -1e30)
    weights = jnp.where(mask, jax.nn.softmax(scores, -1), 0)
    heads.append(jnp.einsum('brts,brsh->brth', weights, value))
  return jnp.stack(heads, axis=3)


@pytest.mark.parametrize(
  ('tile_rows', 'block_len'), [(4, 3), (12, 4), (256, 128)]
)
def test_value_and_gradient_equal_dense_attention(
  tile_rows, block_len, monkeypatch
):
  monkeypatch.setattr(blockwise, 'TILE_ROWS', tile_rows)
  monkeypatch.setattr(blockwise, 'BLOCK_LEN', block_len)
  arrays, masks = _case()
  weight = jnp.asarray(
    np.random.default_rng(1).normal(size=(B, R, T, N, H)), jnp.float32
  )

  def value(function):
    return lambda *a: jnp.sum(weight * function(*a, **masks))

  ours = prefix_attention.prefix_attention
  np.testing.assert_allclose(
    ours(*arrays, **masks), _dense(*arrays, **masks), atol=2e-6
  )
  argnums = tuple(range(5))
  got = jax.jit(jax.grad(value(ours), argnums))(*arrays)
  want = jax.grad(value(_dense), argnums)(*arrays)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(a, b, atol=5e-6)


def test_a_slot_that_sees_nothing_gives_zero_and_finite_gradients():
  arrays, masks = _case()
  masks['own'] = jnp.zeros_like(masks['own'])
  run = prefix_attention.prefix_attention
  out = run(*arrays, **masks)
  np.testing.assert_array_equal(out[:, :2], 0)  # No row, and no context.
  np.testing.assert_array_equal(out[:, 6], 0)  # Padding.
  assert np.abs(out[:, 2]).min() > 0
  grads = jax.grad(lambda *a: jnp.sum(run(*a, **masks) ** 2), (0, 1, 2, 3, 4))
  q, k, v, *context = grads(*arrays)
  for grad in (q, k, v, *context):
    assert np.isfinite(grad).all()
  np.testing.assert_array_equal(q[:, :2], 0)
  np.testing.assert_array_equal(k, 0)
  # Of segment 2 in the second sequence nobody is a row: no gradient.
  np.testing.assert_array_equal(context[1][1, 5:], 0)


def test_no_own_keys_and_one_mask_for_all_rows():
  arrays, masks = _case(u=0)
  masks['own'] = jnp.ones((T, 0), bool)
  got = prefix_attention.prefix_attention(*arrays, **masks)
  masks['own'] = jnp.ones((B, R, T, 0), bool)
  np.testing.assert_allclose(got, _dense(*arrays, **masks), atol=2e-6)

  arrays, masks = _case()
  own = jnp.asarray([[True, False, False], [True, True, False]])
  masks['own'] = own
  got = prefix_attention.prefix_attention(*arrays, **masks)
  masks['own'] = jnp.broadcast_to(own, (B, R, T, U))
  np.testing.assert_allclose(got, _dense(*arrays, **masks), atol=2e-6)


def test_scale_replaces_the_default():
  arrays, masks = _case()
  q, *rest = arrays
  run = prefix_attention.prefix_attention
  want = run(q, *rest, **masks)
  got = run(q * 2 / np.sqrt(H), *rest, **masks, scale=0.5)
  np.testing.assert_allclose(got, want, atol=2e-6)
  assert np.abs(run(q, *rest, **masks, scale=0.5) - want).max() > 1e-2
