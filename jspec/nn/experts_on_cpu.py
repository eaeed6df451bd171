# SPDX-License-Identifier: MIT
"""Products by expert on a CPU, where XLA has none.

There `jax.lax.ragged_dot` multiplies every row by every expert. Here a loop
takes blocks of a few rows of one expert, and as many as there are:

  rows     a a a | b | d d d d d        sorted by expert, blocks of 4
  blocks   a a a b   b d d d   d d d d   d
           ^^^^^     ^         ^^^^^^^   ^     the rest is written over next

Of a matrix it takes some rows at a time, as many as stay in a cache: XLA copies
what a loop slices, and so memory is read once and never written. An expert that
no row chose is not read.
"""

import math

import jax
import jax.numpy as jnp

from jspec.typing import Array, Float, Int, Shaped

# Up to about so many rows a product takes the time of reading its matrix.
_FEWEST, _MOST = 4, 128
_SLICE_BYTES = 3 << 19


@jax.custom_vjp
def ragged_dot(
  rows: Float[Array, 'M D'],
  weight: Shaped[Array, 'E D F'],
  sizes: Int[Array, 'E'],
) -> Float[Array, 'M F']:
  """`jax.lax.ragged_dot`; the gradient goes through that.

  Args:
    rows: sorted by expert.
    weight: a matrix for every expert, of any type of numbers; those of eight
      bits become floats slice by slice.
    sizes: rows of every expert; behind them there may be anything.

  Returns:
    Products in the type of `rows`.
  """
  num_rows, width = rows.shape
  num_experts, _, columns = weight.shape
  block = block_size(num_rows, num_experts)
  ends = jnp.cumsum(-(-sizes // block))  # In blocks.
  starts = jnp.cumsum(sizes) - sizes
  # Sums are floats of 32 bits, as in XLA's product, and faster on a CPU.
  padded = jnp.pad(rows, ((0, block), (0, 0))).astype(jnp.float32)
  height = _slice_height(width, columns)

  def one(number, out):
    expert = jnp.searchsorted(ends, number, side='right')
    before = ends[expert] - -(-sizes[expert] // block)
    start = starts[expert] + (number - before) * block
    some = jax.lax.dynamic_slice(padded, (start, 0), (block, width))

    def add(i, total):
      at = i * height
      part = jax.lax.dynamic_slice(
        weight, (expert, at, 0), (1, height, columns)
      )
      left = jax.lax.dynamic_slice(some, (0, at), (block, height))
      return total + left @ part[0].astype(jnp.float32)

    total = jnp.zeros((block, columns), jnp.float32)
    total = jax.lax.fori_loop(0, width // height, add, total)
    return jax.lax.dynamic_update_slice(
      out, total.astype(out.dtype), (start, 0)
    )

  out = jnp.zeros((num_rows + block, columns), rows.dtype)
  return jax.lax.fori_loop(0, ends[-1], one, out)[:num_rows]


def block_size(num_rows: int, num_experts: int) -> int:
  """Rows of a block: a power of two, about as many as an expert has."""
  share = max(1, num_rows // num_experts)
  return min(_MOST, max(_FEWEST, 1 << (share - 1).bit_length()))


def _slice_height(height, columns):
  """Rows of a matrix taken at once: a divisor of all, for even slices."""
  most = max(1, _SLICE_BYTES // (4 * columns))
  if height <= most:
    return height
  divisors = (
    one
    for i in range(1, math.isqrt(height) + 1)
    if height % i == 0
    for one in (i, height // i)
  )
  return max(one for one in divisors if one <= most)


def _forward(rows, weight, sizes):
  return ragged_dot(rows, weight, sizes), (rows, weight, sizes)


def _backward(kept, gradient):
  rows, weight, sizes = kept
  is_float = jnp.issubdtype(weight.dtype, jnp.floating)

  def product(rows, weight):
    return jax.lax.ragged_dot(rows, weight.astype(rows.dtype), sizes)

  if is_float:
    _, back = jax.vjp(product, rows, weight)
    return *back(gradient), None
  _, back = jax.vjp(lambda rows: product(rows, weight), rows)
  return *back(gradient), None, None


ragged_dot.defvjp(_forward, _backward)
