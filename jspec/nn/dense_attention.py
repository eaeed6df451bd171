# SPDX-License-Identifier: MIT
"""Softmax attention under a mask, every query against every key.

  o = sum_s e^(x_s - m) v_s / (sum_s e^(x_s - m) [+ e^(sink - m)])

For whole sequences without a cache, or some queries of them; its memory grows
with the queries times the keys.
"""

import math

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float, Int


def visible(
  positions: Int[Array, 'B S'], segments: Int[Array, 'B S'], window: int | None
) -> Bool[Array, 'B S S']:
  """Whom each token sees: its own segment up to itself, a window of it.

  Args:
    positions: of the tokens in their segments.
    segments: documents, 0 for padding.
    window: tokens seen, itself included; None for all.
  """
  same = segments[:, :, None] == segments[:, None, :]
  mask = same & jnp.tril(jnp.ones(same.shape[1:], bool))
  if window is None:
    return mask
  return mask & (positions[:, :, None] - positions[:, None, :] < window)


def attend(
  q: Float[Array, 'B T N H'],
  k: Float[Array, 'B S K H'],
  v: Float[Array, 'B S K H'],
  mask: Bool[Array, 'B T S'],
  *,
  scale: float | None = None,
  sinks: Float[Array, 'N'] | None = None,
) -> Float[Array, 'B T N H']:
  """Attends; statistics in float32.

  Args:
    q: queries, rotated.
    k: keys, rotated.
    v: values.
    mask: which key each query sees; at least one.
    scale: factor on the scores; None means H ** -0.5.
    sinks: a logit of each head that takes part in the softmax and has no value.
  """
  grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
  scores = jnp.einsum('BTKGH,BSKH->BKGTS', grouped, k).astype(jnp.float32)
  if scale is None:
    scores = scores / math.sqrt(q.shape[-1])
  else:
    scores = scores * scale
  scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  if sinks is None:
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
  else:
    sink = sinks.astype(jnp.float32).reshape(k.shape[2], -1, 1, 1)
    column = jnp.broadcast_to(sink, (*scores.shape[:-1], 1))
    weights = jax.nn.softmax(jnp.concatenate([scores, column], -1), axis=-1)
    weights = weights[..., :-1].astype(v.dtype)
  out = jnp.einsum('BKGTS,BSKH->BTKGH', weights, v)
  return out.reshape(q.shape)
