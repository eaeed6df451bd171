# SPDX-License-Identifier: MIT
"""Named shapes that are really run; tests and benchmarks read this list."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A problem size.

  Attributes:
    name: what it stands for.
    lengths: cached tokens of each row; also says how many rows there are.
    num_nodes: nodes of every row.
    live_nodes: live nodes of each row; None means all.
    shape: 'chain', 'block', 'tree' (random), or 'branches' (cascade attention:
      chains of equal length behind one shared prefix).
    num_branches: of the shape 'branches'.
    window: sliding window in tokens; None means none.
    has_sinks: whether heads have sinks.
  """

  name: str
  lengths: tuple[int, ...]
  num_nodes: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  page_size: int = 32
  pages_per_row: int = 8
  num_layers: int = 2
  live_nodes: tuple[int, ...] | None = None
  shape: str = 'chain'
  num_branches: int = 1
  window: int | None = None
  has_sinks: bool = False


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
    name='one_row_long',
    lengths=(500, 3, 0, 17),
    num_nodes=4,
    num_heads=8,
    num_kv_heads=2,
    head_width=128,
    pages_per_row=16,
    shape='tree',
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
    name='tree_of_128',
    lengths=(40, 129),
    num_nodes=128,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    shape='tree',
  ),
  Case(
    name='unequal_depth',
    lengths=(70, 0, 33, 128),
    num_nodes=40,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    live_nodes=(1, 40, 7, 33),
    shape='tree',
  ),
  Case(
    name='widest_head',
    lengths=(50, 97),
    num_nodes=3,
    num_heads=2,
    num_kv_heads=1,
    head_width=256,
    shape='tree',
  ),
  Case(
    name='odd_page_count',
    lengths=(66, 7),
    num_nodes=3,
    num_heads=4,
    num_kv_heads=1,
    head_width=80,
    page_size=24,
    pages_per_row=3,
    shape='tree',
  ),
  Case(
    name='cascade',
    lengths=(100, 9),
    num_nodes=33,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    shape='branches',
    num_branches=4,
  ),
  Case(
    name='window',
    lengths=(10, 15, 16, 17, 40, 200),
    num_nodes=9,
    num_heads=4,
    num_kv_heads=2,
    head_width=64,
    page_size=16,
    pages_per_row=16,
    shape='tree',
    window=16,
  ),
  Case(
    name='window_shorter_than_the_draft',
    lengths=(0, 5, 31),
    num_nodes=12,
    num_heads=2,
    num_kv_heads=2,
    head_width=64,
    page_size=16,
    window=4,
  ),
  Case(
    name='window_and_sinks',
    lengths=(0, 63, 130),
    num_nodes=8,
    num_heads=8,
    num_kv_heads=2,
    head_width=64,
    page_size=16,
    pages_per_row=16,
    shape='tree',
    window=64,
    has_sinks=True,
  ),
)

_SMOLLM2 = dict(num_heads=9, num_kv_heads=3, head_width=64, num_layers=30)
# What the benchmarks time: the attention of SmolLM2-135M, all layers.
TIMED = (
  *(
    Case(
      name=f'{nodes}_nodes_{context}',
      lengths=(context,),
      num_nodes=nodes,
      pages_per_row=context // 32,
      **_SMOLLM2,
    )
    for context in (256, 2048, 8192)
    for nodes in (1, 8)
  ),
  Case(
    name='1_node_256_of_512',
    lengths=(256,),
    num_nodes=1,
    pages_per_row=16,
    **_SMOLLM2,
  ),
  Case(
    name='1_node_256_of_8192',
    lengths=(256,),
    num_nodes=1,
    pages_per_row=256,
    **_SMOLLM2,
  ),
  Case(
    name='64_rows_equal',
    lengths=(256,) * 64,
    num_nodes=1,
    pages_per_row=256,
    **_SMOLLM2,
  ),
  Case(
    name='64_rows_one_long',
    lengths=(8192, *(256,) * 63),
    num_nodes=1,
    pages_per_row=256,
    **_SMOLLM2,
  ),
  Case(
    name='16_rows_8_nodes',
    lengths=(256,) * 16,
    num_nodes=8,
    pages_per_row=16,
    **_SMOLLM2,
  ),
  # D2SD verifies 5 branches of 16 tokens behind one prefix.
  Case(
    name='cascade_shared',
    lengths=(2048,),
    num_nodes=81,
    pages_per_row=64,
    shape='branches',
    num_branches=5,
    **_SMOLLM2,
  ),
  Case(
    name='cascade_expanded',
    lengths=(2048,) * 5,
    num_nodes=17,
    pages_per_row=64,
    **_SMOLLM2,
  ),
)
