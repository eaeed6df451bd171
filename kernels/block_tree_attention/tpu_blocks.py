# SPDX-License-Identifier: MIT
"""Sizes of the TPU kernel: what fits in VMEM, and which bytes it moves.

No device is asked: the memory of a generation is a parameter, so that programs
are planned, lowered and compiled on machines without a TPU.
"""

import dataclasses

from jspec.kernels import tpu_pages

LANES, SUBLANES = tpu_pages.LANES, tpu_pages.SUBLANES
MAX_TILE_NODES = 128
# Half of the smallest VMEM that is compiled for (v5p and v7x; v5e and v6e have
# 128 MiB): XLA wants the rest for what runs beside the kernel.
VMEM_BYTES = 32 * 2**20
VMEM_SLACK = 8 * 2**20  # What Mosaic keeps for itself.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
  """The shapes of a call; letters as everywhere."""

  rows: int
  num_nodes: int
  num_heads: int
  num_kv_heads: int
  head_width: int
  page_size: int
  pages_per_row: int
  itemsize: int

  @property
  def groups(self) -> int:
    return self.num_heads // self.num_kv_heads

  @property
  def tile_nodes(self) -> int:
    """Nodes a grid step scores; more of them read the pages once per tile."""
    return min(self.num_nodes, MAX_TILE_NODES)

  @property
  def num_tiles(self) -> int:
    return -(-self.num_nodes // self.tile_nodes)

  @property
  def num_words(self) -> int:
    return -(-self.num_nodes // 32)

  @property
  def is_transposed(self) -> bool:
    """Whether a page lies as [K, H, R] in memory."""
    return tpu_pages.rows_on_lanes(self.page_size, self.head_width)

  @property
  def padded_nodes(self) -> int:
    """Key nodes, padded to whole sublanes."""
    return _round_up(self.num_nodes, 2 * SUBLANES)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
  """Block sizes of the kernel.

  Attributes:
    pages: pages a buffer holds; while one is used, the next is filled.
    queries: query rows (node, head of the group) computed together. Tiles that
      hold dead nodes only are skipped.
  """

  pages: int
  queries: int


def choose(
  problem: Problem, window: int | None = None, vmem_bytes: int = VMEM_BYTES
) -> Blocks:
  """The largest blocks, up to 512 cached rows, that fit in `vmem_bytes`.

  Raises:
    NotImplementedError: not even one page fits.
  """
  num_queries = _round_up(problem.tile_nodes * problem.groups, SUBLANES)
  queries = min(num_queries, 64 if num_queries < 256 else 128)
  # A small window lives in a few pages; a wide block would be mostly masked.
  rows = 512 if window is None else min(512, _round_up(window, LANES))
  pages = max(1, min(rows // problem.page_size, problem.pages_per_row))
  while True:
    blocks = Blocks(pages=pages, queries=queries)
    needed = vmem(problem, blocks)
    if needed <= vmem_bytes:
      return blocks
    if pages == 1:
      raise NotImplementedError(
        f'block_tree_attention on TPU: {problem} needs {needed} bytes of VMEM,'
        f' the limit is {vmem_bytes}: use smaller pages, fewer nodes or shards'
        ' over the key-value heads'
      )
    pages = pages // 2


def num_query_rows(problem: Problem, blocks: Blocks) -> int:
  """Query rows of a key-value head in a grid step, padded to whole tiles."""
  return _round_up(problem.tile_nodes * problem.groups, blocks.queries)


def vmem(problem: Problem, blocks: Blocks) -> int:
  """Bytes of VMEM the kernel asks for, tiling's padding included."""
  heads, width = problem.num_kv_heads, _round_up(problem.head_width, LANES)
  queries = num_query_rows(problem, blocks)
  block_rows = blocks.pages * problem.page_size
  lanes = problem.head_width if problem.is_transposed else width
  pages = 2 * 2 * heads * block_rows * lanes * problem.itemsize
  # What the grid pipelines is there twice: q, out, k, v and the words.
  step = 2 * heads * queries * width * problem.itemsize
  step += 2 * heads * problem.padded_nodes * width * problem.itemsize
  step += 2 * SUBLANES * _round_up(problem.num_nodes, LANES) * 4
  state = (heads * (width + 2 * LANES) + LANES) * queries * 4
  # Scores and weights in float32, once more in the dtype of the values.
  lanes = max(block_rows, _round_up(problem.num_nodes, LANES))
  scores = 3 * blocks.queries * lanes * 4
  return pages + 2 * step + state + scores


def most_pages(problem: Problem, window: int | None = None) -> int:
  """Pages of a row that its nodes see, when its page table is full."""
  if window is None:
    return problem.pages_per_row
  length = problem.pages_per_row * problem.page_size
  first = max(length + 1 - window, 0) // problem.page_size
  return problem.pages_per_row - first


def floor_bytes(problem: Problem, live_pages: int, live_nodes: int) -> int:
  """Bytes no kernel can avoid, without any padding.

  Each live page once, q, k, v and the output of live nodes once, a word of
  ancestors for every 32 nodes.
  """
  page = problem.num_kv_heads * problem.page_size * problem.head_width
  node = 2 * (problem.num_heads + problem.num_kv_heads) * problem.head_width
  return (
    2 * live_pages * page * problem.itemsize
    + live_nodes * node * problem.itemsize
    + live_nodes * problem.num_words * 4
  )


def moved_bytes(problem: Problem, blocks: Blocks, live_pages: int) -> int:
  """Bytes the kernel's copies move, the padding of T and of queries included.

  The lanes that tiling adds to heads narrower than 128 are not counted: they
  belong to how the pool is stored. A test counts the copies of the interpreter.
  """
  steps = problem.rows * problem.num_tiles
  heads, width = problem.num_kv_heads, problem.head_width
  page = heads * problem.page_size * width * problem.itemsize
  queries = num_query_rows(problem, blocks)
  return (
    2 * problem.num_tiles * live_pages * page
    + steps * 2 * heads * queries * width * problem.itemsize
    + problem.rows * 2 * heads * problem.padded_nodes * width * problem.itemsize
    + steps * problem.num_words * problem.tile_nodes * 4
  )


def _round_up(x, multiple):
  return -(-x // multiple) * multiple
