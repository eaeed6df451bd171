# SPDX-License-Identifier: MIT
"""The operations of training that are timed: value and gradient, and memory."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jspec.kernels.draft_block_attention import api as draft_block_attention
from jspec.kernels.draft_block_attention import cases as block_cases
from jspec.kernels.linear_xent import api as linear_xent
from jspec.kernels.linear_xent import cases as xent_cases


def programs() -> dict[str, tuple[Callable[[], object], int]]:
  """Functions to time, by name, and the bytes of scratch each needs."""
  found = {}
  for implementation in ('xla', 'reference'):
    for name, make in (('draft blocks', _blocks), ('head with CE', _xent)):
      function, args = make(implementation)
      compiled = jax.jit(function).lower(*args).compile()
      scratch = compiled.memory_analysis().temp_size_in_bytes
      found[f'{name} {implementation}'] = (
        functools.partial(compiled, *args),
        scratch,
      )
  return found


def _blocks(implementation):
  case = next(c for c in block_cases.LARGE if c.name == 'smollm2_135m')
  rng = np.random.default_rng(0)

  def random(*shape):
    return jnp.asarray(rng.standard_normal(shape, np.float32))

  own = (case.rows, case.num_anchors, case.block_size)
  heads = (case.num_kv_heads, case.head_width)
  arrays = (
    random(*own, case.num_heads, case.head_width),
    random(*own, *heads),
    random(*own, *heads),
    random(case.rows, case.context_len, *heads),
    random(case.rows, case.context_len, *heads),
  )
  anchors = np.sort(
    rng.integers(1, case.context_len, (case.rows, case.num_anchors)), axis=1
  )
  segments = jnp.ones((case.rows, case.context_len), jnp.int32)

  def loss(arrays):
    out = draft_block_attention.draft_block_attention(
      *arrays,
      anchors=jnp.asarray(anchors, jnp.int32),
      segments=segments,
      window=case.window,
      implementation=implementation,
    )
    return jnp.sum(jnp.square(out))

  return jax.value_and_grad(loss), (arrays,)


def _xent(implementation):
  case = next(c for c in xent_cases.LARGE if c.name == 'smollm2_135m')
  rng = np.random.default_rng(0)
  shape = (*case.batch, case.num_rows)
  hidden = jnp.asarray(rng.standard_normal((*shape, case.width), np.float32))
  head = rng.standard_normal((case.width, case.vocab_size), np.float32)
  labels = jnp.asarray(rng.integers(0, case.vocab_size, shape), jnp.int32)

  def loss(hidden, head):
    found = linear_xent.linear_xent(
      hidden,
      head,
      labels=labels,
      row_chunk=case.row_chunk,
      vocab_chunk=case.vocab_chunk,
      implementation=implementation,
    )
    return jnp.mean(found['ce'])

  return jax.value_and_grad(loss), (hidden, jnp.asarray(head) * 0.05)
