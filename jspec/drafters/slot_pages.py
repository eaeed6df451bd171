# SPDX-License-Identifier: MIT
"""Pages for drafters that keep several key-value rows a position.

With K slots a position, a page of R positions holds R K rows, the slots of a
position side by side, under the same page ids as the target's:

  R = 2, K = 3     | p0s0 p0s1 p0s2 p1s0 p1s1 p1s2 | p2s0 ...

So the table only counts otherwise: K times as many rows are committed.
"""

import dataclasses

import jax.numpy as jnp

from jspec.cache import paged
from jspec.typing import Array, Float, Int


def table(of: paged.PageTable, num_slots: int) -> paged.PageTable:
  """The same table, its lengths in rows instead of positions."""
  return dataclasses.replace(of, lengths=of.lengths * num_slots)


def write(
  pages: paged.Pages,
  of: paged.PageTable,
  k: Float[Array, 'L B T slots K H'],
  v: Float[Array, 'L B T slots K H'],
  num_positions: Int[Array, 'B'],
) -> paged.Pages:
  """Writes the first positions of `k` and `v` behind the prefix.

  A position without a page shows in the target's own commit: same table.
  """
  num_layers, rows, size, num_slots = k.shape[:4]
  shape = (num_layers, rows, size * num_slots, *k.shape[4:])
  path = jnp.arange(size * num_slots, dtype=jnp.int32)
  path = jnp.broadcast_to(path, (rows, path.size))
  written, _ = paged.write(
    pages,
    table(of, num_slots),
    k.reshape(shape),
    v.reshape(shape),
    path,
    num_positions * num_slots,
  )
  return written


def newest(
  pages: paged.Pages, of: paged.PageTable, num_slots: int
) -> tuple[Float[Array, 'L B slots K H'], Float[Array, 'L B slots K H']]:
  """Key and value rows of the last committed position.

  Of an empty row: those of some position, whatever they hold.
  """
  last = jnp.maximum(of.lengths - 1, 0)
  page, place = jnp.divmod(last, pages.k.shape[3] // num_slots)
  page = jnp.take_along_axis(of.page_ids, page[:, None], axis=1)
  page = jnp.maximum(page, 0)
  row = place[:, None] * num_slots + jnp.arange(num_slots)

  def gather(pool):
    return jnp.moveaxis(pool[:, page, :, row], 2, 0)

  return gather(pages.k), gather(pages.v)
