# SPDX-License-Identifier: MIT
"""Commits, and whole rounds: every layer attends, then the path is written."""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jspec.kernels import tpu_pages
from jspec.kernels.block_tree_attention import sharded as attention_sharded
from jspec.kernels.kv_commit import api as commit
from jspec.kernels.kv_commit import sharded as commit_sharded
from tests.tpu_compile import models
from tests.tpu_compile.program import Program, integers, shape


def commit_arrays(model, *, path_len, **options):
  arrays = models.sizes(model, **options)
  rows = options['rows']
  node = shape(model['num_layers'], *arrays['k'].shape, dtype=arrays['k'].dtype)
  return (
    arrays['k_pages'],
    arrays['v_pages'],
    node,
    node,
    integers(rows, path_len),
    arrays['page_ids'],
    integers(rows),
    integers(rows),
  )


def commit_shardings(axis, arrays):
  def of(mesh):
    def on(*spec):
      return NamedSharding(mesh, PartitionSpec(*spec))

    pool = tpu_pages.pool_format(on(None, None, axis), *arrays[0].shape[3:])
    node = on(None, None, None, axis)
    return (pool, pool, node, node, *(on(),) * 4), (pool, pool, on())

  return of


def commit_program(name, model, **options):
  arrays = commit_arrays(model, **options)
  return Program(
    name=f'commit_{name}',
    function=functools.partial(commit.kv_commit, implementation='tpu'),
    arguments=arrays,
    shardings=commit_shardings(None, arrays),
    donate=(0, 1),
    max_temp_bytes=models.num_bytes(arrays[0]),
  )


# --- A round: all layers attend, then the accepted path is written -----------


def round_program(name, model, *, num_devices=1, path_len=8, **options):
  """Layers in a scan read the pools, a commit writes them: no copy anywhere."""
  arrays = models.sizes(model, **options)
  for unused in ('sinks', 'layer', 'depths'):
    del arrays[unused]
  num_layers = model['num_layers']
  for node in ('q', 'k', 'v'):
    array = arrays[node]
    arrays[node] = shape(num_layers, *array.shape, dtype=array.dtype)
  pools = [arrays.pop(pool) for pool in ('k_pages', 'v_pages')]
  paths = integers(options['rows'], path_len), integers(options['rows'])
  axis = 'model' if num_devices > 1 else None

  def run(mesh, pools, arrays, path, num_rows):
    stacked = [arrays[name] for name in ('q', 'k', 'v')]
    rest = {
      name: x for name, x in arrays.items() if name not in ('q', 'k', 'v')
    }

    def layer(_, xs):
      index, *nodes = xs
      return None, attention_sharded.block_tree_attention(
        *nodes,
        *pools,
        layer=index,
        mesh=mesh,
        heads=axis,
        implementation='tpu',
        **rest,
      )

    _, out = jax.lax.scan(layer, None, (jnp.arange(num_layers), *stacked))
    *pools, dropped = commit_sharded.kv_commit(
      *pools,
      *stacked[1:],
      path,
      arrays['page_ids'],
      arrays['lengths'],
      num_rows,
      mesh=mesh,
      heads=axis,
      implementation='tpu',
    )
    return pools, out, dropped

  def shardings(mesh):
    def on(*spec):
      return NamedSharding(mesh, PartitionSpec(*spec))

    pool = tpu_pages.pool_format(on(None, None, axis), *pools[0].shape[3:])
    named = {name: on() for name in arrays}
    named |= {name: on(None, None, None, axis) for name in ('q', 'k', 'v')}
    return (
      ([pool, pool], named, on(), on()),
      ([pool, pool], on(None, None, None, axis), on()),
    )

  return Program(
    name=f'round_{name}',
    function=run,
    arguments=(pools, arrays, *paths),
    shardings=shardings,
    donate=(0,),
    num_devices=num_devices,
    max_temp_bytes=models.num_bytes(pools[0]) // num_devices,
  )


PROGRAMS = (
  commit_program(
    'qwen3_8b_16x8',
    models.QWEN3_8B,
    rows=16,
    nodes=16,
    context=2048,
    page_size=32,
    path_len=8,
  ),
  commit_program(
    'qwen3_8b_prefill_256',
    models.QWEN3_8B,
    rows=1,
    nodes=256,
    context=4096,
    page_size=32,
    path_len=256,
  ),
  commit_program(
    'gpt_oss_20b_16x8',
    models.GPT_OSS_20B,
    rows=16,
    nodes=8,
    context=2048,
    page_size=128,
    path_len=8,
  ),
  commit_program(
    'smollm2_float32_4x8',
    models.SMOLLM2,
    rows=4,
    nodes=8,
    context=512,
    page_size=32,
    path_len=8,
    dtype=jnp.float32,
  ),
  round_program(
    'qwen3_8b_four_chips',
    models.QWEN3_8B,
    num_devices=4,
    rows=16,
    nodes=16,
    context=4096,
    page_size=32,
  ),
  round_program(
    'gpt_oss_20b_four_chips',
    models.GPT_OSS_20B,
    num_devices=4,
    rows=16,
    nodes=8,
    context=4096,
    page_size=128,
  ),
)
