# SPDX-License-Identifier: MIT
"""Named shapes that are really run; tests and benchmarks read this list."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A problem size.

  Attributes:
    name: what it stands for.
    lengths: cached tokens of each row before the write.
    num_rows: rows to write for each.
    num_nodes: nodes of the round.
    path_len: entries of a path, the ignored ones at its end included.
    missing: (row, slot) of the page table where a row owns no page.
  """

  name: str
  lengths: tuple[int, ...]
  num_rows: tuple[int, ...]
  num_nodes: int = 8
  path_len: int = 5
  num_kv_heads: int = 2
  head_width: int = 128
  page_size: int = 16
  pages_per_row: int = 3
  num_layers: int = 2
  missing: tuple[tuple[int, int], ...] = ()


CASES = (
  Case(
    name='within_a_tile', lengths=(0, 9, 3), num_rows=(5, 2, 0), num_kv_heads=3
  ),
  Case(name='across_tiles', lengths=(6, 20), num_rows=(5, 5), head_width=64),
  Case(name='across_pages', lengths=(15, 14, 31), num_rows=(3, 5, 5)),
  Case(name='page_edges', lengths=(16, 11, 32, 0), num_rows=(1, 5, 5, 0)),
  Case(
    name='small_pages',
    lengths=(7, 3),
    num_rows=(5, 5),
    page_size=8,
    head_width=80,
    num_kv_heads=1,
    num_layers=3,
  ),
  Case(
    name='chunk_of_40',
    lengths=(0, 5),
    num_rows=(40, 33),
    num_nodes=40,
    path_len=40,
    page_size=8,
    pages_per_row=6,
  ),
  Case(
    name='rows_on_lanes',
    lengths=(0, 126, 250),
    num_rows=(5, 5, 3),
    head_width=64,
    page_size=128,
  ),
  Case(
    name='no_page_in_the_middle',
    lengths=(14, 3, 30),
    num_rows=(4, 3, 4),
    missing=((0, 1),),
  ),
  Case(name='behind_the_table', lengths=(46, 3), num_rows=(5, 2)),
)
