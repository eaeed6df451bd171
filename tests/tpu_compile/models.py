# SPDX-License-Identifier: MIT
"""Shapes of models that are served, and the arrays of a round of them."""

import math

import jax.numpy as jnp

from tests.tpu_compile.program import integers, shape

QWEN3_8B = dict(num_layers=36, num_heads=32, num_kv_heads=8, head_width=128)
GPT_OSS_20B = dict(num_layers=24, num_heads=64, num_kv_heads=8, head_width=64)
GEMMA3_4B = dict(num_layers=34, num_heads=8, num_kv_heads=4, head_width=256)
SMOLLM2 = dict(num_layers=30, num_heads=9, num_kv_heads=3, head_width=64)


def sizes(model, *, rows, nodes, context, page_size, dtype=jnp.bfloat16):
  """Shapes by name; the pools hold the context of every row."""
  pages_per_row = context // page_size
  heads, width = model['num_kv_heads'], model['head_width']
  pool = shape(
    model['num_layers'],
    rows * pages_per_row,
    heads,
    page_size,
    width,
    dtype=dtype,
  )
  node = shape(rows, nodes, heads, width, dtype=dtype)
  return dict(
    q=shape(rows, nodes, model['num_heads'], width, dtype=dtype),
    k=node,
    v=node,
    k_pages=pool,
    v_pages=pool,
    layer=integers(),
    page_ids=integers(rows, pages_per_row),
    lengths=integers(rows),
    ancestors=shape(rows, nodes, -(-nodes // 32), dtype=jnp.uint32),
    num_nodes=integers(rows),
    depths=integers(rows, nodes),
    sinks=shape(model['num_heads'], dtype=jnp.float32),
  )


def num_bytes(array):
  return math.prod(array.shape) * array.dtype.itemsize
