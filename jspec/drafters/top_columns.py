# SPDX-License-Identifier: MIT
"""The largest logits of many rows, without the logits of all of them.

top_k(hidden head),   a chunk of rows at a time, no gradient
"""

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int


def top(
  hidden: Float[Array, 'B R D'],
  head: Float[Array, 'D V'],
  count: int,
  row_chunk: int,
) -> tuple[Float[Array, 'B R Q'], Int[Array, 'B R Q']]:
  """Values and columns of the `count` largest logits, equal ones by column.

  Args:
    hidden: rows after the final norm; the batch axis is never looped over.
    head: a column for every token.
    count: Q, at most V.
    row_chunk: rows of each batch entry whose logits exist at once.
  """
  hidden, head = jax.lax.stop_gradient((hidden, head))
  rows, num_rows, width = hidden.shape
  num_chunks = -(-num_rows // row_chunk)
  size = -(-num_rows // num_chunks)
  padded = jnp.pad(hidden, ((0, 0), (0, num_chunks * size - num_rows), (0, 0)))
  chunks = jnp.moveaxis(padded.reshape(rows, num_chunks, size, width), 1, 0)

  def of_chunk(chunk):
    logits = jnp.matmul(chunk, head, preferred_element_type=jnp.float32)
    return jax.lax.top_k(logits, count)

  found = jax.lax.map(of_chunk, chunks)
  values, columns = (
    jnp.moveaxis(x, 0, 1).reshape(rows, -1, count)[:, :num_rows] for x in found
  )
  return values, columns
