# SPDX-License-Identifier: MIT
"""What a training step of a block drafter spends its time in."""

import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jspec.kernels.draft_block_attention import api as attention
from jspec.kernels.draft_block_attention import cases as attention_cases
from jspec.kernels.draft_block_attention import sharded
from jspec.kernels.linear_xent import api as linear_xent
from jspec.kernels.linear_xent import cases as loss_cases
from tests.tpu_compile.program import Program, integers, replicated, shape

ATTENTION = {case.name: case for case in attention_cases.LARGE}
LOSS = {case.name: case for case in loss_cases.LARGE}


def attention_program(name, case, *, dtype=jnp.bfloat16, num_devices=1):
  """Value and gradient; the scores of all slots must not exist."""
  block = (case.rows, case.num_anchors, case.block_size)
  own = shape(*block, case.num_kv_heads, case.head_width, dtype=dtype)
  context = shape(
    case.rows,
    case.context_len,
    case.num_kv_heads,
    case.head_width,
    dtype=dtype,
  )
  queries = shape(*block, case.num_heads, case.head_width, dtype=dtype)
  arrays = (queries, own, own, context, context)
  tables = dict(
    anchors=integers(*block[:2]),
    segments=integers(case.rows, case.context_len),
  )

  def run(*arguments):
    *mesh, arrays, tables, d_out = arguments

    def attend(*arrays):
      if mesh:
        tables.update(mesh=mesh[0], heads='model')
        attend = sharded.draft_block_attention
      else:
        attend = attention.draft_block_attention
      return attend(*arrays, **tables, window=case.window, implementation='tpu')

    out, pull = jax.vjp(attend, *arrays)
    return out, pull(d_out)

  def by_heads(mesh):
    spread = NamedSharding(mesh, PartitionSpec(None, None, None, 'model'))
    context = NamedSharding(mesh, PartitionSpec(None, None, 'model'))
    whole = NamedSharding(mesh, PartitionSpec())
    arrays = (spread, spread, spread, context, context)
    return (arrays, whole, spread), (spread, arrays)

  num_slots = case.rows * case.num_anchors * case.block_size
  return Program(
    name=f'draft_block_{name}',
    function=run,
    arguments=(arrays, tables, queries),
    shardings=replicated if num_devices == 1 else by_heads,
    num_devices=num_devices,
    max_temp_bytes=num_slots * case.num_heads * case.context_len * 4,
  )


def loss_program(name, case, losses, *, dtype=jnp.bfloat16, has_head=False):
  """Value and gradient; the logits of all rows must not exist."""
  rows = (*case.batch, case.num_rows)
  named = dict(labels=integers(*rows)) if 'ce' in losses else {}
  if set(losses) & set(linear_xent.OF_TEACHER):
    named |= dict(
      teacher_hidden=shape(*rows, case.teacher_width, dtype=dtype),
      teacher_head=shape(case.teacher_width, case.vocab_size, dtype=dtype),
    )

  # What must not exist; a head that is trained has a float32 sum that may.
  logits = math.prod(rows) * case.vocab_size * 4
  head_sum = case.width * case.vocab_size * 4 if has_head else 0

  def run(hidden, head, named):
    def total(hidden, head):
      out = linear_xent.linear_xent(
        hidden,
        head,
        losses=losses,
        row_chunk=case.row_chunk,
        vocab_chunk=case.vocab_chunk,
        **named,
      )
      return sum(jnp.sum(out[loss]) for loss in losses)

    argnums = (0, 1) if has_head else (0,)
    return jax.value_and_grad(total, argnums=argnums)(hidden, head)

  return Program(
    name=f'linear_xent_{name}',
    function=run,
    arguments=(
      shape(*rows, case.width, dtype=dtype),
      shape(case.width, case.vocab_size, dtype=dtype),
      named,
    ),
    max_temp_bytes=logits + head_sum,
  )


PROGRAMS = (
  attention_program('qwen3_8b', ATTENTION['qwen3_8b']),
  attention_program('qwen3_8b_4_devices', ATTENTION['qwen3_8b'], num_devices=4),
  attention_program(
    'smollm2_float32', ATTENTION['smollm2_135m'], dtype=jnp.float32
  ),
  loss_program('qwen3_8b', LOSS['qwen3_8b'], ('ce',)),
  loss_program('qwen3_8b_teacher', LOSS['qwen3_8b'], ('ce', 'kl', 'tv')),
  loss_program('qwen3_8b_head', LOSS['qwen3_8b'], ('ce',), has_head=True),
  loss_program(
    'smollm2_float32', LOSS['smollm2_135m'], ('ce',), dtype=jnp.float32
  ),
)
