# SPDX-License-Identifier: MIT
"""Operations lower for accelerators on a machine that has none.

This is the StableHLO that a TPU or GPU would be given, checked by `jax.export`,
and for Pallas kernels the Mosaic module in it; the compiler of the device
itself does not run here (`make test-tpu-compile` runs it).
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import pytest

from jspec.kernels.block_tree_attention import api as block_tree_attention
from jspec.kernels.kv_commit import api as kv_commit

# Layers, rows, nodes, query heads, key heads, head width, pages, page size and
# pages of a row, as the 135M model has them.
L, B, T, N, K, H, P, R, M = 30, 4, 8, 9, 3, 64, 64, 32, 16


def shape(*sizes, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(sizes, dtype)


def integers(*sizes):
  return shape(*sizes, dtype=jnp.int32)


# A Pallas kernel is a custom call, which an export of one version promises
# nothing about.
UNCHECKED = [jax.export.DisabledSafetyCheck.custom_call('tpu_custom_call')]
PLATFORMS = [
  ('reference', 'tpu'),
  ('reference', 'cuda'),
  ('xla', 'tpu'),
  ('xla', 'cuda'),
  ('tpu', 'tpu'),
]


def lowered(function, platform, *args, **named):
  return jax.export.export(
    jax.jit(function), platforms=[platform], disabled_checks=UNCHECKED
  )(*args, **named)


@pytest.mark.few(4)
@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('name, platform', PLATFORMS)
def test_block_tree_attention_lowers(name, platform, dtype):
  pool = shape(L, P, K, R, H, dtype=dtype)
  exported = lowered(
    functools.partial(
      block_tree_attention.block_tree_attention, implementation=name
    ),
    platform,
    shape(B, T, N, H, dtype=dtype),
    shape(B, T, K, H, dtype=dtype),
    shape(B, T, K, H, dtype=dtype),
    pool,
    pool,
    layer=integers(),
    page_ids=integers(B, M),
    lengths=integers(B),
    ancestors=shape(B, T, 1, dtype=jnp.uint32),
  )
  assert exported.platforms == (platform,)
  assert exported.out_avals[0].shape == (B, T, N, H)
  is_kernel = 'tpu_custom_call' in exported.mlir_module()
  assert is_kernel == (name == 'tpu')


@pytest.mark.parametrize('dtype', [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize('name, platform', PLATFORMS[2:])
def test_kv_commit_lowers(name, platform, dtype):
  pool = shape(L, P, K, R, H, dtype=dtype)
  rows = shape(L, B, T, K, H, dtype=dtype)
  exported = lowered(
    functools.partial(kv_commit.kv_commit, implementation=name),
    platform,
    pool,
    pool,
    rows,
    rows,
    integers(B, T),
    integers(B, M),
    integers(B),
    integers(B),
  )
  assert exported.platforms == (platform,)
  assert exported.out_avals[0].shape == (L, P, K, R, H)
  is_kernel = 'tpu_custom_call' in exported.mlir_module()
  assert is_kernel == (name == 'tpu')


def test_a_kernel_does_not_lower_for_another_platform():
  pool = shape(L, P, K, R, H)
  rows = shape(L, B, T, K, H)
  tables = integers(B, T), integers(B, M), integers(B), integers(B)
  function = functools.partial(kv_commit.kv_commit, implementation='tpu')
  with pytest.raises(Exception, match='(?i)pallas|mosaic|tpu'):
    lowered(function, 'cuda', pool, pool, rows, rows, *tables)
