# SPDX-License-Identifier: MIT
"""Named shapes that are really run; tests and benchmarks read this list."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A problem size; `lengths` also says how many rows there are."""

  name: str
  lengths: tuple[int, ...]
  num_nodes: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  page_size: int = 32
  pages_per_row: int = 8
  num_layers: int = 2
  shape: str = 'chain'


CASES = (
  Case(
    name='plain_one_row',
    lengths=(200,),
    num_nodes=1,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
  ),
  Case(
    name='empty_prefix',
    lengths=(0, 0),
    num_nodes=5,
    num_heads=4,
    num_kv_heads=2,
    head_width=16,
  ),
  Case(
    name='chain_ragged',
    lengths=(0, 1, 31, 32, 33, 255),
    num_nodes=8,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
  ),
  Case(
    name='block_ragged',
    lengths=(5, 130),
    num_nodes=16,
    num_heads=8,
    num_kv_heads=8,
    head_width=32,
    shape='block',
  ),
  Case(
    name='tree_two_words',
    lengths=(70, 0, 3),
    num_nodes=45,
    num_heads=6,
    num_kv_heads=2,
    head_width=16,
    page_size=16,
    shape='tree',
  ),
  Case(
    name='odd_page_count',
    lengths=(66, 7),
    num_nodes=3,
    num_heads=4,
    num_kv_heads=1,
    head_width=8,
    page_size=24,
    pages_per_row=3,
    shape='tree',
  ),
)
