# SPDX-License-Identifier: MIT
"""How a pool of pages [L, P, K, R, H] lies in the memory of a TPU.

Memory is tiled in 8 x 128; XLA lays each array out so that the tiles waste
least, and a Pallas kernel takes what it reads row-major. Where the two differ,
XLA copies the whole pool around every call. They agree when

- H is a multiple of 128: row-major;
- R is a multiple of 128 and H is not: rows on the lanes, [K, H, R] a page. The
  kernels then read the pool with its last axes swapped, which moves nothing.

For narrow heads in short pages XLA would put the page axis on the lanes. A
program must pin `pool_format` for its pools there; they take 128 / H times the
memory, so pages of 128 rows are better.
"""

import jax
from jax.experimental import layout

SUBLANES, LANES = 8, 128


def rows_on_lanes(page_size: int, head_width: int) -> bool:
  """Whether a page lies as [K, H, R] rather than [K, R, H]."""
  return bool(head_width % LANES) and page_size % LANES == 0


def pool_format(
  sharding: jax.sharding.Sharding, page_size: int, head_width: int
) -> layout.Format:
  """What to pin for pools in `in_shardings` and `out_shardings` on a TPU."""
  order = (0, 1, 2, 3, 4)
  if rows_on_lanes(page_size, head_width):
    order = (0, 1, 2, 4, 3)
  return layout.Format(layout.Layout(order), sharding)
