# SPDX-License-Identifier: MIT
"""Named shapes that are really run; tests and benchmarks read these lists."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
  """A problem size; a teacher has a hidden width of its own."""

  name: str
  batch: tuple[int, ...]
  num_rows: int
  width: int
  vocab_size: int
  teacher_width: int
  top_k: int = 10
  row_chunk: int = 128
  vocab_chunk: int | None = None


# Small enough for all logits at once; chunks divide neither rows nor columns.
CASES = (
  Case(
    name='all_columns',
    batch=(2,),
    num_rows=11,
    width=8,
    vocab_size=33,
    teacher_width=6,
    row_chunk=3,
  ),
  Case(
    name='rows_and_columns',
    batch=(),
    num_rows=13,
    width=8,
    vocab_size=101,
    teacher_width=12,
    row_chunk=5,
    vocab_chunk=30,
  ),
  Case(
    name='one_column_at_a_time',
    batch=(1, 2),
    num_rows=3,
    width=4,
    vocab_size=7,
    teacher_width=4,
    top_k=7,
    row_chunk=1,
    vocab_chunk=1,
  ),
  Case(
    name='chunks_larger_than_all',
    batch=(2,),
    num_rows=5,
    width=8,
    vocab_size=17,
    teacher_width=8,
    row_chunk=64,
    vocab_chunk=64,
  ),
)

# What training runs: anchors x slots rows of a sequence.
LARGE = (
  Case(
    name='smollm2_135m',
    batch=(4,),
    num_rows=64 * 7,
    width=576,
    vocab_size=49_152,
    teacher_width=576,
    row_chunk=16 * 7,
  ),
  Case(
    name='qwen3_8b',
    batch=(1,),
    num_rows=512 * 15,
    width=4096,
    vocab_size=151_936,
    teacher_width=4096,
    row_chunk=512,
  ),
)
