# SPDX-License-Identifier: MIT
"""Between one token axis and rows: how unequal depths share the matmuls.

A model's matmuls run on packed tokens, so cutting a draft saves time there.
Attention belongs to rows, whose pages it reads, so it gathers its tokens into
rows of `max_nodes`, a copy that is small beside the pages:

  tokens a0 a1 b0 c0 c1 c2 -   starts 0 2 3 6   ->   rows a0 a1 - / b0 - - / ...
"""

import jax.numpy as jnp
from jaxtyping import Array, Int, Shaped


def index(
  starts: Int[Array, 'B1'], max_nodes: int, num_tokens: int
) -> tuple[Int[Array, 'B T'], Int[Array, 'B']]:
  """The token of each node, and how many nodes each row has.

  Nodes a row does not have point at some token of another row.
  """
  node = jnp.arange(max_nodes, dtype=starts.dtype)
  tokens = jnp.minimum(starts[:-1, None] + node, num_tokens - 1)
  return tokens, jnp.minimum(starts[1:] - starts[:-1], max_nodes)


def to_rows(
  x: Shaped[Array, 'Q *rest'], index: Int[Array, 'B T']
) -> Shaped[Array, 'B T *rest']:
  """Gathers tokens into rows."""
  return x[index]


def to_tokens(
  x: Shaped[Array, 'B T *rest'], starts: Int[Array, 'B1'], num_tokens: int
) -> Shaped[Array, 'Q *rest']:
  """Gathers the live nodes of rows back onto the token axis; padding is 0."""
  token = jnp.arange(num_tokens, dtype=starts.dtype)
  row = jnp.searchsorted(starts[1:], token, side='right')
  is_live = row < x.shape[0]
  row = jnp.minimum(row, x.shape[0] - 1)
  node = jnp.clip(token - starts[row], min=0, max=x.shape[1] - 1)
  is_live = is_live.reshape(-1, *(1,) * (x.ndim - 2))
  return jnp.where(is_live, x[row, node], jnp.zeros((), x.dtype))
