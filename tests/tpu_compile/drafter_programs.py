# SPDX-License-Identifier: MIT
"""A round and a training step of every kind of drafter, beside Qwen3-0.6B.

For one generation: their kernels are compiled for all of them elsewhere, and
what XLA does to the rest differs little.
"""

import functools
import math

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.cache import paged
from jspec.drafters import (
  base,
  block_loss,
  borrowed,
  d2sd,
  dflare,
  dflash2,
  dfly,
  dspark,
  eagle3,
  mtp,
  objective,
  specblock,
)
from jspec.kernels import choose
from tests.tpu_compile.program import Program, integers, shape

WIDTH, VOCAB, LAYERS = 1024, 151_936, 28
DRAFT_VOCAB = 32_000
ROWS, CONTEXT, PAGE = 8, 4096, 128
BATCH, LENGTH, ANCHORS = 2, 2048, 128
TOPOLOGIES = ('v5e:2x2',)

_SHAPE = dict(
  width=WIDTH,
  ff_width=3072,
  num_heads=16,
  num_kv_heads=8,
  head_width=128,
  norm_eps=1e-6,
  rope_base=1e6,
  target_width=WIDTH,
  target_num_layers=LAYERS,
  vocab_size=VOCAB,
)
_BLOCK = dict(
  num_layers=2,
  taps=(1, 7, 13, 19, 25),
  mask_token_id=VOCAB - 1,
  block_size=8,
  num_draft_tokens=8,
  label_shift=1,
  draft_vocab_size=None,
)
_THREE = dict(taps=(1, 13, 24), draft_vocab_size=DRAFT_VOCAB)
_EXPERTS = dict(
  num_experts=16, experts_per_token=4, expert_ff_width=768, num_shared_experts=1
)


def _block(method, loss=None, **parts):
  config = method.config(**_SHAPE, **{**_BLOCK, **parts})
  return method, config, loss


def _plain(method, loss, **fields):
  return method, method.config_class(**_SHAPE, **fields), loss


def _loss(**mix):
  return block_loss.LossConfig(num_anchors=ANCHORS, mix=objective.Mix(**mix))


DRAFTERS = {
  'dflash2': _block(dflash2.METHOD, selector_rank=256, conv_group=16),
  'dflare': _block(dflare.METHOD, tree_size=32),
  'dfly': _block(
    dfly.METHOD, _loss(weights='dpace', lk_hybrid=1.0), correction_width=1024
  ),
  'dspark': _block(
    dspark.METHOD,
    _loss(ce=0.1, l1=0.9, confidence=1.0),
    markov_rank=256,
    has_confidence=True,
    confidence_sees_token=True,
  ),
  'd2sd': _block(d2sd.METHOD, num_cuts=3),
  'eagle3': _plain(
    eagle3.METHOD,
    eagle3.LossConfig(ttt_length=4, num_anchors=ANCHORS),
    **_THREE,
    norm_output=False,
    fc_norm=False,
    num_draft_tokens=5,
    tree_size=31,
    tree_width=8,
  ),
  'mtp_experts': _plain(
    mtp.METHOD,
    mtp.LossConfig(ttt_length=3, num_anchors=ANCHORS),
    taps=(LAYERS - 1,),
    draft_vocab_size=None,
    num_draft_tokens=3,
    qk_norm=True,
    embedding_first=True,
    input_postnorm=True,
    feedback_postnorm=True,
    zero_first_embedding='first_step',
    **_EXPERTS,
  ),
  'specblock': _plain(
    specblock.METHOD,
    specblock.LossConfig(num_anchors=ANCHORS, num_blocks=2),
    **_THREE,
    num_layers=2,
    block_size=4,
    num_draft_tokens=4,
    label_shift=1,
    tree_size=31,
  ),
}
TRAINED = ('dfly', 'dspark', 'eagle3', 'mtp_experts', 'specblock')


def _abstract(name):
  """The drafter taken apart: its structure, and the shapes of its arrays."""
  method, config, loss = DRAFTERS[name]

  def make():
    size = config.draft_vocab_size
    head = jnp.zeros((WIDTH, size or VOCAB), jnp.bfloat16)
    arrays = borrowed.Borrowed(
      embedding=jnp.zeros((VOCAB, WIDTH), jnp.bfloat16),
      head=head,
      draft_token_ids=None if size is None else jnp.arange(size),
      final_norm=jnp.ones((WIDTH,), jnp.bfloat16),
      target_head=jnp.zeros((WIDTH, VOCAB), jnp.bfloat16),
    )
    return method.make(config, loss, arrays, jax.random.key(0))

  return nnx.split(nnx.eval_shape(make))


def _on_tpu(function):
  """Traces with the kernels that a TPU would choose."""

  @functools.wraps(function)
  def traced(*args):
    with choose.compiling_for('tpu', num_devices=1):
      return function(*args)

  return traced


def round_program(name):
  """Propose, then commit what was accepted; state donated."""
  graph, arrays = _abstract(name)
  pages_per_row = CONTEXT // PAGE
  num_pages = ROWS * pages_per_row
  table = paged.PageTable(
    page_ids=integers(ROWS, pages_per_row),
    lengths=integers(ROWS),
    dropped=shape(dtype=jnp.bool_),
  )
  drafter = nnx.merge(graph, arrays)

  def start(arrays):
    table = paged.contiguous_table(ROWS, pages_per_row)
    return nnx.merge(graph, arrays).init_state(table, num_pages, PAGE)

  state = jax.eval_shape(start, arrays)
  num_nodes = drafter.num_draft_tokens + 1
  rows = base.Committed(
    tokens=integers(ROWS, num_nodes),
    taps=shape(ROWS, num_nodes, len(drafter.taps), WIDTH, dtype=jnp.bfloat16),
    num_rows=integers(ROWS),
    next_token=integers(ROWS),
  )

  @_on_tpu
  def run(state, arrays, table, anchor, rows):
    drafter = nnx.merge(graph, arrays)
    draft = drafter.propose(state, table, anchor, None, None)
    return draft, drafter.commit(state, table, rows)

  pool = max(
    math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(state)
  )
  return Program(
    name=f'drafter_{name}_round',
    function=run,
    arguments=(state, arrays, table, integers(ROWS), rows),
    donate=(0,),
    topologies=TOPOLOGIES,
    max_temp_bytes=max(pool, 2**28),
  )


def training_program(name):
  """Value and gradient; the logits of all slots must not exist."""
  graph, arrays = _abstract(name)
  _, params, rest = nnx.split(nnx.merge(graph, arrays), nnx.Param, ...)
  drafter = nnx.merge(graph, arrays)
  structure = nnx.split(drafter, nnx.Param, ...)[0]
  batch = base.DraftBatch(
    tokens=integers(BATCH, LENGTH),
    positions=integers(BATCH, LENGTH),
    segments=integers(BATCH, LENGTH),
    is_answer=shape(BATCH, LENGTH, dtype=jnp.bool_),
    taps=shape(BATCH, LENGTH, len(drafter.taps), WIDTH, dtype=jnp.float32),
    last=base.LastHidden(
      shape(BATCH, LENGTH, WIDTH, dtype=jnp.float32), is_normed=False
    ),
  )
  slots = BATCH * ANCHORS * (8 if hasattr(drafter, 'block') else 4)
  columns = drafter.config.draft_vocab_size or VOCAB

  @_on_tpu
  def run(params, rest, batch, seed):
    def loss(params):
      model = nnx.merge(structure, params, rest)
      return model.loss(batch, jax.random.key(seed))[0]

    return jax.value_and_grad(loss)(params)

  return Program(
    name=f'drafter_{name}_training',
    function=run,
    arguments=(params, rest, batch, shape(dtype=jnp.uint32)),
    topologies=TOPOLOGIES,
    # SpecBlock keeps the states of four slots of every token for its gradient.
    max_temp_bytes=None if name == 'specblock' else slots * columns * 4 + 2**30,
  )


PROGRAMS = (
  *(round_program(name) for name in DRAFTERS),
  *(training_program(name) for name in TRAINED),
)
