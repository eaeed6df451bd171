# SPDX-License-Identifier: MIT
"""Grouped dynamic convolution along the slots of a block (DFlash2).

Around a sub-layer f, with n the normed input of slot t and two sides s (before
and after f), each with two taps (this slot, the slot before):

  c_t[s] = base[s] + proj(n_t)[s]         one coefficient a tap and channel; of
                                          proj's, one for a group of channels
  conv_s(x)_t = c_t[s, 0] x_t + c_t[s, 1] x_{t-1}         x_{-1} = 0
  x + f(n)    becomes    x + conv_1(f(conv_0(n)))

Nothing crosses from one block to the next. `base` starts as (1, 0) and `proj`
as 0, so the sub-layer starts as it was.
"""

import jax.numpy as jnp

from jspec.nn import tiles
from jspec.typing import Array, Float

SIDES, TAPS = 2, 2


def array_shapes(width: int, group: int) -> dict[str, tuple[int, ...]]:
  """Shapes of the arrays of one convolution, by suffix."""
  return {
    'conv_base': (SIDES, TAPS, width),
    'conv_proj': (width, SIDES * TAPS * (width // group)),
  }


def identity() -> Float[Array, 'side tap 1']:
  """`base` at the start, for every channel."""
  return jnp.asarray([[[1.0], [0.0]]] * SIDES, jnp.float32)


def coefficients(
  normed: Float[Array, 'B Q D'],
  base: Float[Array, 'side tap D'],
  proj: Float[Array, 'D P'],
  group: int,
) -> Float[Array, 'B Q side tap D']:
  """Coefficients of every slot, for both sides."""
  width = normed.shape[-1]
  dynamic = tiles.matmul(normed, proj).reshape(
    *normed.shape[:-1], SIDES, TAPS, width // group
  )
  return base + jnp.repeat(dynamic, group, axis=-1)


def apply(
  x: Float[Array, 'B Q D'],
  coefficient: Float[Array, 'B Q tap D'],
  block_size: int,
) -> Float[Array, 'B Q D']:
  """Mixes every slot with the one before it in its own block."""
  blocks = x.reshape(x.shape[0], -1, block_size, x.shape[-1])
  before = jnp.pad(blocks[:, :, :-1], ((0, 0), (0, 0), (1, 0), (0, 0)))
  before = before.reshape(x.shape)
  return coefficient[:, :, 0] * x + coefficient[:, :, 1] * before
