# SPDX-License-Identifier: MIT
"""The candidate-path selector of DFlash2: which of a slot's best tokens fits.

With U_t the slot's log-probabilities, C_t its K best tokens and a the token
before (the anchor for the first slot):

  S_t(a, b) = U_t(b) + <A[a] * (h_t W), B[b]>,        b in C_t, rank r
  q_t(b | a) = softmax over C_t of S_t(a, b)

The walk goes from slot to slot, but only over K scores: the backbone and the LM
head have run once. q is the exact law of a sampled draft. B starts at 0, so the
drafter starts as if it had no selector. Trained by cross-entropy over the K
candidates given the true token before, where the true token is one of them.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jspec.typing import Array, Bool, Float, Int, Key


class Selector(nnx.Module):
  """The selector's parameters."""

  def __init__(
    self,
    rank: int,
    size: int,
    width: int,
    vocab_size: int,
    draft_vocab_size: int,
    key: Key[Array, ''],
  ):
    key_prev, key_proj = jax.random.split(key)
    self.size = size
    normal = jax.random.normal
    self.prev = nnx.Param(0.02 * normal(key_prev, (vocab_size, rank)))
    self.next = nnx.Param(jnp.zeros((draft_vocab_size, rank)))
    self.proj = nnx.Param(0.02 * normal(key_proj, (width, rank)))

  def scores(
    self,
    hidden: Float[Array, '*batch D'],
    unary: Float[Array, '*batch Q'],
    columns: Int[Array, '*batch Q'],
    before: Int[Array, '*batch'],
  ) -> Float[Array, '*batch Q']:
    """S of every candidate behind the token `before` (a target id)."""
    query = self.prev[...][before] * (hidden @ self.proj[...])
    pair = jnp.einsum('...r,...qr->...q', query, self.next[...][columns])
    return unary + pair


def cross_entropy(
  selector: Selector,
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D V'],
  labels: Int[Array, 'B A G'],
  before: Int[Array, 'B A G'],
  counts: Bool[Array, 'B A G'],
  chunk: int,
) -> tuple[Float[Array, 'B A G'], Bool[Array, 'B A G'], Bool[Array, 'B A G']]:
  """Loss of every slot, whether the pick is right, whether the label is there.

  Slots that do not count, or whose label is no candidate, have loss 0 and no
  gradient. Logits exist for `chunk` anchors of a row at a time, and are made
  once more for the gradient.
  """
  rows, num_anchors, num_labels, width = hidden.shape
  missing = -num_anchors % chunk

  def in_chunks(x):
    padding = [(0, 0), (0, missing)] + [(0, 0)] * (x.ndim - 2)
    x = jnp.pad(x, padding).reshape(rows, -1, chunk, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  @jax.checkpoint
  def one(inputs):
    hidden, labels, before, counts = inputs
    logits = (hidden @ head).astype(jnp.float32)
    values, columns = jax.lax.top_k(logits, selector.size)
    # A label outside must not be reached by a gradient, so U is over all.
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    scores = selector.scores(hidden, values - total, columns, before)
    is_label = columns == labels[..., None]
    inside = jnp.any(is_label, axis=-1)
    picked = jnp.sum(jnp.where(is_label, scores, 0), axis=-1)
    loss = jax.nn.logsumexp(scores, axis=-1) - picked
    best = jnp.argmax(scores, axis=-1)[..., None]
    is_hit = jnp.take_along_axis(is_label, best, axis=-1)[..., 0]
    return jnp.where(inside & counts, loss, 0), is_hit, inside

  inputs = tuple(in_chunks(x) for x in (hidden, labels, before, counts))
  found = jax.lax.map(one, inputs)

  def whole(x):
    x = jnp.moveaxis(x, 0, 1).reshape(rows, -1, num_labels)
    return x[:, :num_anchors]

  return tuple(whole(x) for x in found)
