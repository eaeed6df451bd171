# SPDX-License-Identifier: MIT
"""The sizes a scheduler works with; none of them changes while it runs."""

import dataclasses

from jspec import errors


@dataclasses.dataclass(frozen=True, kw_only=True)
class SchedulerConfig:
  """Sizes, fixed while the engine runs.

  Attributes:
    num_pages: pages of the pool.
    page_size: rows a page holds.
    max_rows: requests decoded side by side.
    max_len: the context, prompt and answer together.
    max_drafts: most draft tokens of a round, whatever the depth policy does.
    num_rounds: most rounds of a launch.
    chunk_sizes: compiled lengths of prefill, ascending.
    max_prefill_tokens: most of them in a launch, summed.
  """

  num_pages: int
  page_size: int
  max_rows: int
  max_len: int
  max_drafts: int
  num_rounds: int
  chunk_sizes: tuple[int, ...]
  max_prefill_tokens: int

  def __post_init__(self):
    for name in ('num_pages', 'page_size', 'max_rows', 'num_rounds'):
      _check(
        getattr(self, name) >= 1,
        f'{name}={getattr(self, name)}: give at least 1',
      )
    _check(
      self.max_drafts >= 0,
      f'max_drafts={self.max_drafts}: give 0 (plain decoding) or more',
    )
    _check(
      self.limit >= 2,
      f'max_len={self.max_len}, num_pages={self.num_pages},'
      f' page_size={self.page_size}: context and pool must hold a prompt and an'
      ' answer of one token each; raise them',
    )
    sizes = self.chunk_sizes
    _check(
      bool(sizes) and sizes[0] >= 1 and sorted(set(sizes)) == list(sizes),
      f'chunk_sizes={sizes}: give ascending lengths from 1',
    )
    _check(
      sizes[0] <= self.max_prefill_tokens,
      f'max_prefill_tokens={self.max_prefill_tokens} is less than the smallest'
      f' chunk of {sizes[0]} tokens, so no prompt would ever be read; raise it',
    )

  @property
  def limit(self) -> int:
    """Most tokens of prompt and answer: the context's or a smaller pool's."""
    return min(self.max_len, self.num_pages * self.page_size)


def _check(is_good, message):
  if not is_good:
    raise errors.UserError(message)
