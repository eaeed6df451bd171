# SPDX-License-Identifier: MIT
"""Attention as it is served: models, rows, nodes, contexts; two controls."""

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding, PartitionSpec

from jspec.kernels import tpu_pages
from jspec.kernels.block_tree_attention import api as attention
from jspec.kernels.block_tree_attention import tpu_blocks
from tests.tpu_compile import models
from tests.tpu_compile.program import Program, shape


def attention_program(
  name, model, *, window=None, has_sinks=False, has_floor=False, **options
):
  """`has_floor`: pages outweigh what XLA copies around the kernel in VMEM."""
  arrays = models.sizes(model, **options)
  if not has_sinks:
    del arrays['sinks']

  def run(arrays):
    return attention.block_tree_attention(
      **arrays, window=window, implementation='tpu'
    )

  return Program(
    name=f'attention_{name}',
    function=run,
    arguments=(arrays,),
    shardings=lambda mesh: shardings(mesh, arrays),
    max_temp_bytes=models.num_bytes(arrays['k_pages']),
    floor_bytes=floor_bytes(arrays) if has_floor else None,
  )


def shardings(mesh, arrays):
  """Everything on one device, the pools in the layout the kernel reads."""
  here = NamedSharding(mesh, PartitionSpec())
  pool = tpu_pages.pool_format(here, *arrays['k_pages'].shape[3:])
  named = dict.fromkeys(arrays, here) | dict(k_pages=pool, v_pages=pool)
  return (named,), here


def floor_bytes(arrays):
  """Every page of the table once, the nodes once."""
  rows, nodes, num_heads, width = arrays['q'].shape
  _, _, num_kv_heads, page_size, _ = arrays['k_pages'].shape
  problem = tpu_blocks.Problem(
    rows=rows,
    num_nodes=nodes,
    num_heads=num_heads,
    num_kv_heads=num_kv_heads,
    head_width=width,
    page_size=page_size,
    pages_per_row=arrays['page_ids'].shape[1],
    itemsize=arrays['q'].dtype.itemsize,
  )
  pages = rows * problem.pages_per_row
  return tpu_blocks.floor_bytes(problem, pages, rows * nodes)


# --- Compilations that must fail, or must be seen to copy --------------------


def too_much_vmem():
  """A scratch buffer of 160 MiB, more than any generation has."""

  def kernel(x, out, scratch):
    scratch[...] = jnp.broadcast_to(x[...], scratch.shape)
    out[...] = scratch[7]

  def run(x):
    return pl.pallas_call(
      kernel,
      out_shape=x,
      scratch_shapes=[pltpu.VMEM((40 * 2**10, 8, 128), jnp.float32)],
      compiler_params=pltpu.CompilerParams(vmem_limit_bytes=2**28),
    )(x)

  return Program(
    name='control_too_much_vmem',
    function=run,
    arguments=(shape(8, 128, dtype=jnp.float32),),
    fails_with='space=vmem',
  )


def unpinned_pools():
  """Narrow heads in short pages without `pool_format`: XLA copies the pools.

  They must be large, or the copies hide in VMEM.
  """
  arrays = models.sizes(
    models.GPT_OSS_20B, rows=16, nodes=8, context=2048, page_size=32
  )
  del arrays['sinks']

  def run(arrays):
    return attention.block_tree_attention(**arrays, implementation='tpu')

  return Program(
    name='control_unpinned_pools',
    function=run,
    arguments=(arrays,),
    max_temp_bytes=models.num_bytes(arrays['k_pages']),
    fails_with='something is copied',
  )


PROGRAMS = (
  attention_program(
    'qwen3_8b_16x16x4096',
    models.QWEN3_8B,
    rows=16,
    nodes=16,
    context=4096,
    page_size=32,
    has_floor=True,
  ),
  attention_program(
    'qwen3_8b_64x1x1024',
    models.QWEN3_8B,
    rows=64,
    nodes=1,
    context=1024,
    page_size=64,
    has_floor=True,
  ),
  attention_program(
    'qwen3_8b_1x128x4096',
    models.QWEN3_8B,
    rows=1,
    nodes=128,
    context=4096,
    page_size=32,
    has_floor=True,
  ),
  attention_program(
    'qwen3_8b_prefill_1x512x4096',
    models.QWEN3_8B,
    rows=1,
    nodes=512,
    context=4096,
    page_size=32,
  ),
  attention_program(
    'gpt_oss_20b_window_16x8x4096',
    models.GPT_OSS_20B,
    rows=16,
    nodes=8,
    context=4096,
    page_size=128,
    window=128,
    has_sinks=True,
  ),
  attention_program(
    'gpt_oss_20b_full_16x8x4096',
    models.GPT_OSS_20B,
    rows=16,
    nodes=8,
    context=4096,
    page_size=128,
    has_sinks=True,
    has_floor=True,
  ),
  attention_program(
    'gpt_oss_20b_short_pages',
    models.GPT_OSS_20B,
    rows=4,
    nodes=8,
    context=1024,
    page_size=32,
    window=128,
    has_sinks=True,
  ),
  attention_program(
    'gemma3_4b_8x33x2048',
    models.GEMMA3_4B,
    rows=8,
    nodes=33,
    context=2048,
    page_size=16,
    window=1024,
  ),
  attention_program(
    'smollm2_float32_16x8x512',
    models.SMOLLM2,
    rows=16,
    nodes=8,
    context=512,
    page_size=128,
    dtype=jnp.float32,
  ),
  too_much_vmem(),
  unpinned_pools(),
)
