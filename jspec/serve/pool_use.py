# SPDX-License-Identifier: MIT
"""`PoolUse`: how full the pool is, and what the prefix cache saved."""

from typing import NamedTuple

from jspec.serve import scheduler as scheduler_lib


class PoolUse(NamedTuple):
  """Pages now, and tokens and rows since the engine was made.

  Attributes:
    num_pages: of the pool.
    num_free: that nobody refers to.
    num_idle: that only the prefix cache refers to; they can be had.
    num_queried_tokens: of prompts that were looked up in the prefix cache.
    num_hit_tokens: of them, those that were found.
    num_preemptions: rows taken away for lack of pages.
  """

  num_pages: int
  num_free: int
  num_idle: int
  num_queried_tokens: int
  num_hit_tokens: int
  num_preemptions: int

  @property
  def num_used(self) -> int:
    """Pages that rows and launches hold."""
    return self.num_pages - self.num_free - self.num_idle


def of(scheduler: scheduler_lib.Scheduler) -> PoolUse:
  """What it is now; may be asked from any thread, which sees no torn number."""
  ledger = scheduler.ledger
  return PoolUse(
    num_pages=ledger.pool.num_pages,
    num_free=ledger.pool.num_free,
    num_idle=ledger.pool.num_idle,
    num_queried_tokens=ledger.trie.num_queried_tokens,
    num_hit_tokens=ledger.trie.num_hit_tokens,
    num_preemptions=scheduler.num_preemptions,
  )
