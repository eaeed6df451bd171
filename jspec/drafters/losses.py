# SPDX-License-Identifier: MIT
"""Cross-entropy over draft slots, and the acceptance it predicts.

  loss = sum_k w_k CE_k / sum_k w_k,     w_k = mask_k exp(-(k - 1) / gamma)

with k the depth of the slot (arXiv 2602.06036, section 4). The head is frozen,
so the gradient needs only d CE / d hidden = (softmax - onehot) head^T: it is
taken together with the value, one chunk of anchors at a time. Full logits
[B, A, G, V] never exist, and nothing is computed twice: two matmuls with the
head a step, as in the unchunked form. Value and gradient are equal to it.
"""

import functools

import jax
import jax.numpy as jnp

from jspec.typing import Array, Bool, Float, Int


def decay_weights(num_labels: int, gamma: float) -> Float[Array, 'G']:
  """exp(-(k - 1) / gamma) for k = 1..G; gamma 0 means no decay."""
  depth = jnp.arange(num_labels, dtype=jnp.float32)
  return jnp.exp(-depth / gamma) if gamma else jnp.ones_like(depth)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def cross_entropy(
  hidden: Float[Array, 'B A G D'],
  head: Float[Array, 'D V'],
  labels: Int[Array, 'B A G'],
  chunk: int,
) -> tuple[Float[Array, 'B A G'], Bool[Array, 'B A G']]:
  """-log softmax(hidden head)[label], and whether the label is the argmax.

  Args:
    hidden: slots after the final norm.
    head: frozen; no gradient flows to it.
    labels: columns of the head.
    chunk: anchors of a row whose logits are held at once.
  """
  ce, is_hit, _ = _scan_chunks(hidden, head, labels, chunk, with_grad=False)
  return ce, is_hit


def _forward(hidden, head, labels, chunk):
  ce, is_hit, grad = _scan_chunks(hidden, head, labels, chunk, with_grad=True)
  return (ce, is_hit), (grad, head)


def _backward(chunk, residuals, cotangents):
  del chunk
  grad, head = residuals
  return grad * cotangents[0][..., None], jnp.zeros_like(head), None


cross_entropy.defvjp(_forward, _backward)


def _scan_chunks(hidden, head, labels, chunk, *, with_grad):
  """Runs `_one_chunk` over the anchors; the batch axis stays as it is."""
  num_anchors = hidden.shape[1]
  chunk = min(chunk, num_anchors)
  num_chunks = -(-num_anchors // chunk)
  padding = num_chunks * chunk - num_anchors

  def split(x):
    x = jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))
    x = x.reshape(x.shape[0], num_chunks, chunk, *x.shape[2:])
    return jnp.moveaxis(x, 1, 0)

  def join(x):
    x = jnp.moveaxis(x, 0, 1)
    x = x.reshape(x.shape[0], num_chunks * chunk, *x.shape[3:])
    return x[:, :num_anchors]

  def body(carry, inputs):
    return carry, _one_chunk(*inputs, head, with_grad)

  _, out = jax.lax.scan(body, None, (split(hidden), split(labels)))
  return tuple(None if x is None else join(x) for x in out)


def _one_chunk(hidden, labels, head, with_grad):
  logits = jnp.einsum(
    'BAGD,DV->BAGV', hidden, head, preferred_element_type=jnp.float32
  )
  top = jnp.max(logits, axis=-1, keepdims=True)
  at_label = jnp.take_along_axis(logits, labels[..., None], axis=-1)
  unnormed = jnp.exp(logits - top)
  total = jnp.sum(unnormed, axis=-1, keepdims=True)
  ce = (jnp.log(total) + top - at_label)[..., 0]
  # The label wins when nothing beats it; an exact tie counts as a hit.
  is_hit = (at_label >= top)[..., 0]
  if not with_grad:
    return ce, is_hit, None
  mean_column = jnp.einsum('BAGV,DV->BAGD', unnormed, head) / total
  label_column = jnp.moveaxis(jnp.take(head, labels, axis=1), 0, -1)
  return ce, is_hit, (mean_column - label_column).astype(hidden.dtype)


def weighted_mean(
  values: Float[Array, '*any'], weights: Float[Array, '*any']
) -> Float[Array, '']:
  """sum(w x) / sum(w); 0 (with zero gradient) when there is no weight."""
  return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1e-6)


def acceptance(
  is_hit: Bool[Array, 'B A G'], exists: Bool[Array, 'B A G']
) -> dict[str, Array]:
  """How greedy drafts would fare against these labels.

  Depth k is accepted when all slots up to k hit. `exists` marks the labels of
  every block (a contiguous run); blocks without any are not counted.

  Returns:
    accuracy [G]: slot k hits, whatever came before (not conditional).
    joint_accuracy [G]: slots 1..k all hit.
    conditional_accuracy [G]: slot k hits given that 1..k-1 did.
    tokens_per_round: 1 + mean length of the hitting prefix.
    num_blocks: blocks counted.
  """
  hits = (is_hit & exists).astype(jnp.float32)
  known = exists.astype(jnp.float32)
  survives = jnp.cumprod(hits, axis=-1)
  reached = jnp.concatenate(
    [jnp.ones_like(hits[..., :1]), survives[..., :-1]], axis=-1
  )

  def ratio(numerator, denominator):
    numerator = jnp.sum(numerator, axis=(0, 1))
    return numerator / jnp.maximum(jnp.sum(denominator, axis=(0, 1)), 1.0)

  num_blocks = jnp.sum(known[..., 0])
  prefix = jnp.sum(survives) / jnp.maximum(num_blocks, 1.0)
  return {
    'accuracy': ratio(hits, known),
    'joint_accuracy': ratio(survives, known),
    'conditional_accuracy': ratio(survives, reached * known),
    'tokens_per_round': 1.0 + prefix,
    'num_blocks': num_blocks,
  }
