# SPDX-License-Identifier: MIT
"""Chunked XLA: logits of a chunk of rows and columns at a time.

A loss is a number a row, so its gradient is the row's cotangent times

  dl/dh = W (a - s q)     ce: a = -onehot, s = -1      tv: a = g q, s = sum(a)
                          kl: a = -p,      s = -1      with g = sign(q - p) / 2
                          lse: a = 0,      s = -1      reverse_kl: the same with
                                                       g = log q - log p
                          lk: a = -q [q < p] / sum_v min(p, q), s = sum(a)

(`top` has those on the teacher's top columns.) The value's pass takes it along,
while the logits are there: a frozen head costs two products a step, as in the
unchunked form, and nothing is computed twice. The head's own gradient needs the
cotangents first. Only if the head is being differentiated does the backward
pass make the logits again, chunk by chunk.

There is no Pallas kernel: with some hundred rows a chunk this is large matmuls
with elementwise work in between, which XLA feeds at the speed of the matrix
unit. `columns` does one chunk of rows.
"""

import functools

import jax
import jax.numpy as jnp

from jspec.kernels.linear_xent import columns


def linear_xent(
  hidden,
  head,
  *,
  losses,
  labels,
  teacher_hidden,
  teacher_head,
  top_k,
  row_chunk,
  vocab_chunk,
):
  """Same contract as `api.linear_xent`."""
  values, is_hit = _losses(
    (losses, top_k, row_chunk, min(vocab_chunk, head.shape[1])),
    hidden,
    head,
    labels,
    teacher_hidden,
    teacher_head,
  )
  return values if is_hit is None else {**values, 'is_hit': is_hit}


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _losses(settings, *arrays):
  values, is_hit, _, _ = _run(settings, *arrays, with_grad=False)
  return values, is_hit


def _forward(settings, *arrays):
  hidden, head, *_ = arrays
  # Known when traced: what is not differentiated is not computed.
  needs = (hidden.perturbed, head.perturbed)
  arrays = jax.tree.map(
    lambda x: x.value, arrays, is_leaf=lambda x: hasattr(x, 'perturbed')
  )
  values, is_hit, grads, stats = _run(settings, *arrays, with_grad=needs[0])
  return (values, is_hit), (arrays, grads, stats if needs[1] else None)


def _backward(settings, saved, cotangents):
  arrays, grads, stats = saved
  zero = jax.custom_derivatives.SymbolicZero
  cotangents = {
    name: cotangent
    for name, cotangent in cotangents[0].items()
    if not isinstance(cotangent, zero)
  }
  d_hidden = d_head = None
  if grads and cotangents:
    d_hidden = sum(cotangents[n][..., None] * grads[n] for n in cotangents)
    d_hidden = d_hidden.astype(arrays[0].dtype)
  if stats is not None and cotangents:
    d_head = _head_gradient(settings, *arrays, stats, cotangents)
  return d_hidden, d_head, None, None, None


_losses.defvjp(_forward, _backward, symbolic_zeros=True)


def _run(
  settings, hidden, head, labels, teacher_hidden, teacher_head, *, with_grad
):
  """`columns.losses` of all rows."""
  names, top_k, row_chunk, vocab_chunk = settings

  def body(_, rows):
    return None, columns.losses(
      rows,
      (head, teacher_head),
      names=names,
      size=vocab_chunk,
      top_k=top_k,
      with_grad=with_grad,
    )

  split, join = _chunks(hidden, row_chunk)
  rows = jax.tree.map(split, (hidden, labels, teacher_hidden))
  return jax.tree.map(join, jax.lax.scan(body, None, rows)[1])


def _head_gradient(
  settings,
  hidden,
  head,
  labels,
  teacher_hidden,
  teacher_head,
  stats,
  cotangents,
):
  _, top_k, row_chunk, vocab_chunk = settings

  def body(d_head, chunk):
    rows, stats, cotangents = chunk
    heads = (head, teacher_head)
    return columns.head_gradient(
      rows,
      heads,
      stats,
      cotangents,
      d_head,
      size=vocab_chunk,
      top_k=top_k,
    ), None

  split, _ = _chunks(hidden, row_chunk)
  rows = (hidden, labels, teacher_hidden)
  inputs = jax.tree.map(split, (rows, stats, cotangents))
  zeros = jnp.zeros(head.shape, jnp.float32)
  return jax.lax.scan(body, zeros, inputs)[0].astype(head.dtype)


def _chunks(hidden, row_chunk):
  """Functions that cut the row axis into about equal chunks and join them."""
  axis = hidden.ndim - 2
  num_rows = hidden.shape[axis]
  num_chunks = -(-num_rows // row_chunk)
  size = -(-num_rows // num_chunks)
  padding = num_chunks * size - num_rows

  def split(x):
    widths = [(0, padding if i == axis else 0) for i in range(x.ndim)]
    x = jnp.pad(x, widths)
    shape = (*x.shape[:axis], num_chunks, size, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)

  def join(x):
    x = jnp.moveaxis(x, 0, axis)
    shape = (*x.shape[:axis], num_chunks * size, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x.reshape(shape), 0, num_rows, axis=axis)

  return split, join


def linear_argmax(hidden, head, *, row_chunk):
  """Same contract as `api.linear_argmax`."""

  def body(_, rows):
    logits = jnp.matmul(rows, head, preferred_element_type=jnp.float32)
    return None, jnp.argmax(logits, axis=-1).astype(jnp.int32)

  split, join = _chunks(hidden, row_chunk)
  return join(jax.lax.scan(body, None, split(hidden))[1])
