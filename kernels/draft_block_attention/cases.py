# SPDX-License-Identifier: MIT
"""Named shapes that are really run; tests and benchmarks read these lists."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A problem size; anchors are drawn over rows of packed documents."""

  name: str
  rows: int
  num_anchors: int
  block_size: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  context_len: int
  num_documents: int = 1
  window: int | None = None


# Small enough for a dense oracle.
CASES = (
  Case(
    name='one_anchor',
    rows=1,
    num_anchors=1,
    block_size=4,
    num_heads=2,
    num_kv_heads=1,
    head_width=8,
    context_len=20,
  ),
  Case(
    name='packed_odd',
    rows=2,
    num_anchors=37,
    block_size=7,
    num_heads=6,
    num_kv_heads=2,
    head_width=24,
    context_len=301,
    num_documents=3,
  ),
  Case(
    name='packed_window',
    rows=2,
    num_anchors=20,
    block_size=8,
    num_heads=4,
    num_kv_heads=4,
    head_width=16,
    context_len=290,
    num_documents=2,
    window=33,
  ),
  Case(
    name='window_of_a_block',
    rows=1,
    num_anchors=18,
    block_size=5,
    num_heads=3,
    num_kv_heads=1,
    head_width=16,
    context_len=130,
    window=5,
  ),
)

# What training runs; for benchmarks and the compilers of accelerators.
LARGE = (
  Case(
    name='smollm2_135m',
    rows=4,
    num_anchors=64,
    block_size=8,
    num_heads=9,
    num_kv_heads=3,
    head_width=64,
    context_len=512,
    num_documents=2,
  ),
  Case(
    name='qwen3_8b',
    rows=1,
    num_anchors=512,
    block_size=16,
    num_heads=32,
    num_kv_heads=8,
    head_width=128,
    context_len=4096,
    num_documents=4,
  ),
)
