# SPDX-License-Identifier: MIT
"""Attention over devices that share out tokens: heads in exchange for tokens.

Around attention a device has some tokens of all heads; within, all tokens of
some heads (DeepSpeed-Ulysses, arXiv 2309.14509). Two all-to-alls lie between:

  [B, R / n, T, N, H]  ->  attention of [B, R, T, N / n, H]  ->  [B, R / n, ..]

So no device holds the whole context of more than its own heads, and all do the
same work, whatever the mask. With fewer key-value heads than devices, copies of
each go to several, and their gradients are added. An axis that shares out heads
already (`model`) stays as it is; the exchange is among the heads of its shards.

n devices cannot share out 9 heads of 3 key-value heads if n = 8: the callers
then gather the context, keys and values of all heads, on each of them.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jspec.nn import spread
from jspec.typing import Array, Float


def copies(num_heads: int, num_kv_heads: int, num_shards: int) -> int | None:
  """Copies of every key-value head with which heads share out evenly.

  Args:
    num_heads: query heads; groups of them share a key-value head.
    num_kv_heads: key-value heads.
    num_shards: devices.

  Returns:
    The least number; None where there is none, as copies of a key-value head
    must share out its query heads.
  """
  found = num_shards // math.gcd(num_shards, num_kv_heads)
  return None if num_heads // num_kv_heads % found else found


class Exchange(NamedTuple):
  """How the arrays of one attention lie around it and within.

  Attributes:
    found: the mesh.
    rows: axes of the batch, around and within.
    tokens: axis that the tokens lie on around, and heads besides within.
    heads: axis that heads lie on, around and within; None: none.
    copies: of each key-value head.
  """

  found: spread.Spread
  rows: tuple[str, ...] | None
  tokens: str
  heads: str | None
  copies: int

  @property
  def within(self) -> tuple[str, ...]:
    """Axes that share out the heads within."""
    return (self.heads, self.tokens) if self.heads else (self.tokens,)

  def give(
    self,
    q: Float[Array, 'B R T N H'],
    k: Float[Array, 'B R U K H'],
    v: Float[Array, 'B R U K H'],
    context_k: Float[Array, 'B S K H'],
    context_v: Float[Array, 'B S K H'],
  ) -> list[Array]:
    """The arrays for a `shard_map` whose heads lie on `within`.

    They lie by tokens still, and so do their gradients before those of copies
    are added: what moves is what the `shard_map` asks for.
    """
    keys = (k, v, context_k, context_v)
    keys = [jnp.repeat(self._lie(x), self.copies, axis=-2) for x in keys]
    return [self._lie(x) for x in (q, *keys)]

  def take_back(
    self, mixed: Float[Array, 'B R T N H']
  ) -> Float[Array, 'B R T N H']:
    """What attention gave, by tokens."""
    return self._lie(mixed)

  def _lie(self, x):
    tokens = self.found.shared(self.tokens, x.shape[1])
    between = (None,) * (x.ndim - 4)
    spec = PartitionSpec(self.rows, tokens, *between, self.heads)
    return jax.lax.with_sharding_constraint(
      x, NamedSharding(self.found.mesh, spec)
    )


def find(
  found: spread.Spread, shape: tuple[int, ...], num_kv_heads: int
) -> Exchange | None:
  """The exchange of an attention; None where tokens or heads do not allow it.

  Args:
    found: what is traced for.
    shape: of the queries [B, R, T, N, H]; R need not share out.
    num_kv_heads: K.
  """
  if found.tokens is None:
    return None
  heads = found.shared(found.heads, num_kv_heads)
  held = found.mesh.shape[heads] if heads else 1
  num_shards = found.mesh.shape[found.tokens]
  number = copies(shape[3] // held, num_kv_heads // held, num_shards)
  if number is None:
    return None
  (rows,) = found.batch(shape, has_tokens=False)
  return Exchange(found, rows, found.tokens, heads, number)
