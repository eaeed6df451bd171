# SPDX-License-Identifier: MIT
"""A target on a mesh: every device scores with its shards, writes its pages.

A few layers of models that are served: Qwen3-8B's shape, Gemma 3 (windows),
GPT-OSS (sinks, experts). Weights, pages or logits that were brought together on
one device would show in the memory of the program. Not for v7x, whose compiler
copies each device's own weights before the loop over layers.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jspec import tree
from jspec.cache import paged
from jspec.kernels import choose
from jspec.kernels.block_tree_attention import sharded
from jspec.nn import rope, stack
from jspec.targets import families, sharding, transformer
from tests.tpu_compile import models
from tests.tpu_compile.program import Program, integers, shape

NUM_DEVICES = 4
TOPOLOGIES = ('v5e:2x2', 'v5p:2x2x1', 'v6e:2x2')
ROWS, NODES, CONTEXT, PAGE = 8, 8, 4096, 128
QWEN3 = transformer.TransformerConfig(
  **models.QWEN3_8B | {'num_layers': 4},
  width=4096,
  ff_width=12_288,
  vocab_size=151_936,
  max_len=CONTEXT,
  norm_eps=1e-6,
  rope=rope.RopeConfig(base=1e6),
  tied=False,
)


def few_layers(name, num_layers):
  """The first layers of a published model."""
  whole = families.presets()[name]
  return dataclasses.replace(
    whole,
    num_layers=num_layers,
    windows=whole.windows[:num_layers],
    max_len=CONTEXT,
  )


def abstract_target(config):
  """As `sharding.place` leaves a target, without its arrays."""
  target = jax.eval_shape(lambda: transformer.random(config, jax.random.key(0)))
  target = jax.tree.map(lambda leaf: shape(*leaf.shape), target)
  target.num_attention_shards = NUM_DEVICES
  for part in stack.parts(target.layers):
    part.num_mlp_shards = NUM_DEVICES
  return target


def score_and_commit(
  config, mesh, pools, target, table, tokens, path, num_rows
):
  for part in stack.parts(target.layers):
    if part.moe is not None:
      part.moe.num_shards, part.moe.mesh = NUM_DEVICES, mesh
      part.moe.axis = sharding.AXIS
  spec = sharded.pool_spec(config.num_kv_heads, mesh, sharding.AXIS)
  cache = paged.PagedCache(
    paged.Pages(*pools, sharding=NamedSharding(mesh, spec)), table
  )
  # Traced as on the devices it is for, so that shards choose their kernels.
  with choose.compiling_for('tpu', NUM_DEVICES):
    scored = target.score(
      tokens,
      table.lengths[:, None] + jnp.arange(NODES, dtype=jnp.int32),
      tree.chain_words(ROWS, NODES),
      cache,
      (),
    )
    chosen = jnp.argmax(target.logits(scored.hidden), axis=-1)
    cache = cache.commit(scored.k, scored.v, path, num_rows)
  return (cache.pages.k, cache.pages.v), cache.table, chosen


def program(name, config, max_temp_bytes=None):
  target = abstract_target(config)
  sizes = models.sizes(
    dataclasses.asdict(config),
    rows=ROWS,
    nodes=NODES,
    context=CONTEXT,
    page_size=PAGE,
  )
  table = paged.PageTable(
    sizes['page_ids'], sizes['lengths'], shape(dtype=jnp.bool_)
  )

  def shardings(mesh):
    specs = sharding.specs(config, mesh)

    def of(path, _):
      keys = [
        str(getattr(key, 'name', getattr(key, 'key', ''))) for key in path
      ]
      name = next(key for key in reversed(keys) if key in specs)
      return NamedSharding(mesh, specs[name])

    weights = jax.tree_util.tree_map_with_path(of, target)
    pool = NamedSharding(
      mesh, sharded.pool_spec(config.num_kv_heads, mesh, sharding.AXIS)
    )
    whole = NamedSharding(mesh, PartitionSpec())
    return (pool, weights, whole, whole, whole, whole), (pool, whole, whole)

  return Program(
    name=f'target_{name}_on_a_mesh',
    function=functools.partial(score_and_commit, config),
    arguments=(
      (sizes['k_pages'], sizes['v_pages']),
      target,
      table,
      integers(ROWS, NODES),
      integers(ROWS, NODES),
      integers(ROWS),
    ),
    shardings=shardings,
    donate=(0,),
    num_devices=NUM_DEVICES,
    topologies=TOPOLOGIES,
    # Twice the logits of one device in float32.
    max_temp_bytes=max_temp_bytes
    or 2 * ROWS * NODES * (config.vocab_size // NUM_DEVICES) * 4,
  )


PROGRAMS = (
  program('qwen3_8b_four_layers', QWEN3),
  program('gemma3_27b_seven_layers', few_layers('gemma3_27b', 7)),
  # A ragged matmul takes no slice: a layer's experts are copied out first.
  program('gpt_oss_20b_two_layers', few_layers('gpt_oss_20b', 2), 400 * 2**20),
)
