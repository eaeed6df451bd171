# SPDX-License-Identifier: MIT
"""Scores many continuations of one sequence in one pass.

A branch is an anchor token of the trunk followed by G tokens that someone
proposed there; the target runs it as if the trunk ended at the anchor:

  trunk   t0 t1 t2 t3 t4 t5        sees what `encode` lets it see
  branch        t2 x1 x2 x3        at positions 2 3 4 5, sees t0, t1 and itself

Trunk and branches run side by side through the layers, so the trunk's keys are
computed once. On-policy distillation needs this: the target's law behind every
proposal, at hundreds of anchors a sequence.
"""

import jax.numpy as jnp

from jspec import errors
from jspec.nn import packed_attention, prefix_attention
from jspec.targets import architecture, transformer
from jspec.typing import Array, Float, Int


def score(
  target: transformer.Transformer,
  tokens: Int[Array, 'B S'],
  positions: Int[Array, 'B S'],
  segments: Int[Array, 'B S'],
  anchors: Int[Array, 'B A'],
  branch_tokens: Int[Array, 'B A G'],
) -> Float[Array, 'B A G+1 D']:
  """The target's normed states of every branch.

  Args:
    target: a decoder stack.
    tokens: the trunk, packed documents.
    positions: of the trunk's tokens in their documents.
    segments: documents, 0 for padding.
    anchors: token index where each branch leaves; -1 for no branch (its states
      are finite and mean nothing).
    branch_tokens: what follows each anchor.

  Returns:
    States of the anchor and of the G tokens behind it. Row g is what predicts
    the token behind g of them: rows 0..G-1 judge the tokens of the branch.

  Raises:
    UserError: the target's heads have sinks.
  """
  if target.config.sinks:
    raise errors.UserError(
      'on-policy distillation is not supported for targets whose attention has'
      ' sinks (GPT-OSS): train from its own answers'
    )
  rows, trunk_len = tokens.shape
  _, num_branches, num_tokens = branch_tokens.shape
  branch_len = num_tokens + 1
  at = jnp.maximum(anchors, 0)
  anchor_tokens, start, own_segments = (
    jnp.take_along_axis(x, at, axis=1) for x in (tokens, positions, segments)
  )
  branches = jnp.concatenate([anchor_tokens[..., None], branch_tokens], axis=-1)
  steps = start[..., None] + jnp.arange(branch_len)
  index = at[..., None] + jnp.arange(branch_len)  # In the trunk's count.
  causal = jnp.tril(jnp.ones((branch_len, branch_len), bool))

  scale = target.config.attention_scale
  packed = packed_attention.of(
    positions, segments, architecture.windows(target.config)
  )

  def split(x):
    trunk, rest = x[:, :trunk_len], x[:, trunk_len:]
    return trunk, rest.reshape(rows, num_branches, branch_len, *x.shape[2:])

  def attend(window, layer_idx, q, k, v, sinks):
    del layer_idx, sinks
    begins = None if window is None else index - window + 1
    (q, own_q), (k, own_k), (v, own_v) = split(q), split(k), split(v)
    mixed = packed(window, q, k, v, scale, None)
    own = prefix_attention.prefix_attention(
      own_q,
      own_k,
      own_v,
      k,
      v,
      own=causal if window is None else causal & ~jnp.tril(causal, -window),
      limits=anchors,
      row_segments=own_segments,
      segments=segments,
      begins=begins,
      scale=scale,
    )
    own = own.reshape(rows, -1, *q.shape[2:])
    return jnp.concatenate([mixed, own], axis=1)

  hidden, _, _, _ = target.run(
    jnp.concatenate([tokens, branches.reshape(rows, -1)], axis=1),
    jnp.concatenate([positions, steps.reshape(rows, -1)], axis=1),
    attend,
    (),
    keep_rows=False,
  )
  return split(hidden)[1]
