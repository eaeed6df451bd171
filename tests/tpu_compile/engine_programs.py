# SPDX-License-Identifier: MIT
"""What the serving engine runs, for Qwen3-0.6B and a DFlash drafter.

Rounds of every form, the host's part included, and a chunk of a prompt. The
pools go in donated, and a program that copied one, or cast it, would need its
bytes as temporary memory. For one generation: what differs between them are the
kernels, which are compiled for all of them elsewhere.
"""

import functools

import jax
import jax.numpy as jnp

from jspec.drafters import block_loss, borrowed, dflash, objective
from jspec.kernels import choose
from jspec.nn import rope
from jspec.serve import empty, leaves, programs
from jspec.serve import settings as settings_lib
from jspec.targets import transformer
from tests.tpu_compile import models as models_lib
from tests.tpu_compile.program import Program, shape

TOPOLOGIES = ('v5e:2x2',)
ROWS, PAGE, CHUNK = 8, 128, 256
COMPILED = (
  programs.PROPOSE,
  programs.FUSED,
  programs.PLAIN,
  programs.PREFILL,
)
TARGET = transformer.TransformerConfig(
  num_layers=28,
  width=1024,
  ff_width=3072,
  num_heads=16,
  num_kv_heads=8,
  head_width=128,
  vocab_size=151_936,
  max_len=4096,
  norm_eps=1e-6,
  rope=rope.RopeConfig(base=1e6),
  tied=True,
)


def target():
  made = jax.eval_shape(lambda: transformer.random(TARGET, jax.random.key(0)))
  return jax.tree.map(lambda leaf: shape(*leaf.shape), made)


def drafter():
  config = dflash.METHOD.config(
    width=1024,
    ff_width=3072,
    num_heads=16,
    num_kv_heads=8,
    head_width=128,
    norm_eps=1e-6,
    rope_base=1e6,
    target_width=1024,
    target_num_layers=28,
    vocab_size=TARGET.vocab_size,
    num_layers=2,
    taps=(1, 7, 13, 19, 25),
    mask_token_id=TARGET.vocab_size - 1,
    block_size=8,
    num_draft_tokens=8,
    label_shift=1,
    draft_vocab_size=None,
  )

  def make():
    return dflash.METHOD.make(
      config,
      block_loss.LossConfig(num_anchors=8, mix=objective.Mix()),
      borrowed.Borrowed(
        embedding=jnp.zeros((TARGET.vocab_size, 1024), jnp.bfloat16),
        head=jnp.zeros((1024, TARGET.vocab_size), jnp.bfloat16),
        draft_token_ids=None,
        final_norm=jnp.ones((1024,), jnp.bfloat16),
        target_head=None,
      ),
      jax.random.key(0),
    )

  made = jax.eval_shape(make)
  return jax.tree.map(
    lambda leaf: (
      shape(*leaf.shape) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf
    ),
    made,
  )


def on_tpu(function):
  """Traced as on the device it is for, with the kernels of a TPU."""

  def traced(*args):
    with choose.compiling_for('tpu', num_devices=1):
      return function(*args)

  return traced


def all_programs():
  models = target(), drafter()
  sizes = settings_lib.resolve(
    settings_lib.Settings(max_rows=ROWS, page_size=PAGE, num_budgets=3),
    *models,
  )
  pool = sizes.scheduler
  shapes = programs.Shapes(
    row_buckets=(ROWS,),
    chunk_sizes=(CHUNK,),
    num_rounds=pool.num_rounds,
    num_budgets=sizes.num_budgets,
    policies=sizes.policies,
    rule=sizes.rule,
    is_split=True,
  )
  state = jax.eval_shape(
    functools.partial(
      empty.init_state,
      num_rows=ROWS,
      num_pages=pool.num_pages,
      page_size=PAGE,
      capacity=sizes.capacity,
    ),
    *models,
  )
  pool_bytes = models_lib.num_bytes(state.cache.pages.k)
  found = programs.sources(*models, state, shapes, pool.max_len)
  for form in COMPILED:
    (source,) = (found[key] for key in found if key.form == form)
    yield Program(
      name=f'engine_{form}',
      function=on_tpu(leaves.taking(source.function, *source.models)),
      arguments=source.taken,
      donate=source.donated,
      topologies=TOPOLOGIES,
      max_temp_bytes=pool_bytes,
    )


PROGRAMS = tuple(all_programs())
