# SPDX-License-Identifier: MIT
"""Problems of `draft_block_attention`, and the same spelled out densely."""

import jax
import jax.numpy as jnp
import numpy as np


def make(case, dtype=np.float32, seed=0):
  """Random arrays of a case; the last row of the batch lacks some anchors.

  Returns:
    (q, k, v, context_k, context_v), and anchors, segments, window by name.
  """
  rng = np.random.default_rng(seed)
  rows, length = case.rows, case.context_len
  width = case.head_width

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), dtype)

  # Documents of unequal length, then a little padding.
  segments = np.zeros((rows, length), np.int32)
  end = length - 2
  for row in range(rows):
    cuts = rng.choice(np.arange(1, end), case.num_documents - 1, replace=False)
    edges = [0, *np.sort(cuts), end]
    for i in range(case.num_documents):
      segments[row, edges[i] : edges[i + 1]] = i + 1
  # Neighbours, the first row of all and the last one are among the anchors.
  anchors = np.stack(
    [
      np.sort(rng.choice(end, case.num_anchors, replace=False))
      for _ in range(rows)
    ]
  )
  if case.num_anchors > 2:
    anchors[0, 0], anchors[0, -1] = 0, end - 1
    anchors[-1, -2:] = -1
  block = (rows, case.num_anchors, case.block_size)
  arrays = (
    normal(*block, case.num_heads, width),
    normal(*block, case.num_kv_heads, width),
    normal(*block, case.num_kv_heads, width),
    normal(rows, length, case.num_kv_heads, width),
    normal(rows, length, case.num_kv_heads, width),
  )
  named = dict(
    anchors=jnp.asarray(anchors, jnp.int32),
    segments=jnp.asarray(segments),
    window=case.window,
  )
  return arrays, named


def mask(anchors, segments, window, block_size):
  """[B, A, T, S + A * T] in plain loops: what each slot sees, and no more."""
  anchors, segments = np.asarray(anchors), np.asarray(segments)
  rows, num_anchors = anchors.shape
  length = segments.shape[1]
  seen = np.zeros(
    (rows, num_anchors, block_size, length + num_anchors * block_size), bool
  )
  for b in range(rows):
    for a in range(num_anchors):
      anchor = anchors[b, a]
      if anchor < 0:
        continue
      for t in range(block_size):
        for s in range(anchor):
          is_near = window is None or anchor + t - s < window
          if segments[b, s] == segments[b, anchor] and is_near:
            seen[b, a, t, s] = True
        own = length + a * block_size
        seen[b, a, t, own : own + block_size] = True
  return seen


def expanded(arrays, seen):
  """Dense attention of all slots over context and all slots, under `seen`."""
  q, k, v, context_k, context_v = arrays
  rows, _, _, num_heads, width = q.shape
  groups = num_heads // k.shape[3]

  def everything(context, own):
    own = own.reshape(rows, -1, *own.shape[3:])
    both = jnp.concatenate([context, own], axis=1)
    return jnp.repeat(both, groups, axis=2)

  scores = jnp.einsum('BATNH,BSNH->BATNS', q, everything(context_k, k))
  scores = jnp.where(seen[:, :, :, None], scores / np.sqrt(width), -1e30)
  weights = jax.nn.softmax(scores, axis=-1)
  out = jnp.einsum('BATNS,BSNH->BATNH', weights, everything(context_v, v))
  return jnp.where(seen.any(-1)[..., None, None], out, 0)


def value_and_gradients(function, arrays):
  """The output, and the gradients of its product with fixed numbers."""
  weights = np.random.default_rng(1).normal(size=arrays[0].shape)
  weights = jnp.asarray(weights, jnp.float32)

  def run(*arrays):
    out = function(*arrays)
    return jnp.sum(out.astype(jnp.float32) * weights), out

  argnums = tuple(range(len(arrays)))
  (_, out), grads = jax.jit(
    jax.value_and_grad(run, argnums=argnums, has_aux=True)
  )(*arrays)
  return out, *grads
