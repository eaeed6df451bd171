# SPDX-License-Identifier: MIT
"""`Packing`: rows of unequal depth on one token axis.

A round verifies more nodes of some rows than of others. The matmuls, which are
what verification costs, run on the nodes that are kept and nothing else:

  a0 a1          tokens  a0 a1 b0 c0 c1 c2  -  -
  b0        ->
  c0 c1 c2       starts   0  2  3  6

The number of tokens is a shape and hence known when compiled; the last ones may
be padding.
"""

import dataclasses

import jax
import jax.numpy as jnp

from jspec.kernels.block_tree_attention import pack
from jspec.typing import Array, Int, Shaped


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Packing:
  """Where the nodes of every row lie.

  Attributes:
    starts: first token of each row, and the end of the last one.
    num_tokens: length of the token axis, padding included.
    max_nodes: the most nodes a row may have.
  """

  starts: Int[Array, 'B1']
  num_tokens: int = dataclasses.field(metadata={'static': True})
  max_nodes: int = dataclasses.field(metadata={'static': True})

  def to_tokens(self, x: Shaped[Array, 'B T *rest']) -> Shaped[Array, 'Q ...']:
    """The live nodes of all rows; padding is 0."""
    return pack.to_tokens(x, self.starts, self.num_tokens)

  def to_rows(self, x: Shaped[Array, 'Q *rest']) -> Shaped[Array, 'B T ...']:
    """The rows again; nodes a row does not have hold some other node."""
    index, _ = pack.index(self.starts, self.max_nodes, self.num_tokens)
    return pack.to_rows(x, index)

  def row_of(self) -> Int[Array, 'Q']:
    """The row of each token; of padding some row."""
    token = jnp.arange(self.num_tokens, dtype=self.starts.dtype)
    row = jnp.searchsorted(self.starts[1:], token, side='right')
    return jnp.minimum(row, self.starts.shape[0] - 2).astype(jnp.int32)

  def take(
    self, x: Shaped[Array, 'Q *rest'], node: Int[Array, 'B']
  ) -> Shaped[Array, 'B ...']:
    """One node of every row; what a row does not have is some other node."""
    token = jnp.minimum(self.starts[:-1] + node, self.num_tokens - 1)
    return x[token]


def pack_rows(
  num_nodes: Int[Array, 'B'], num_tokens: int, max_nodes: int
) -> Packing:
  """Lays out rows of `num_nodes` nodes, 0 for a row that takes no part.

  Args:
    num_nodes: their sum must not exceed `num_tokens`, nor any `max_nodes`.
    num_tokens: length of the token axis.
    max_nodes: the most nodes a row may have.
  """
  ends = jnp.cumsum(num_nodes, dtype=jnp.int32)
  starts = jnp.concatenate([jnp.zeros((1,), jnp.int32), ends])
  return Packing(starts, num_tokens, max_nodes)
