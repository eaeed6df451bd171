# SPDX-License-Identifier: MIT
"""`PagePool`: which pages of the device's pool are taken, and how often.

Pages are numbers; what they hold lives on the device. A page is free while
nobody refers to it. Rows refer to their pages, and rows with a common prefix
share its pages. The prefix cache holds at most one reference of its own to a
page, which is marked, so that the pages that only the cache holds (*idle*
pages: they are taken, but can be had by forgetting what they hold) are counted
without a walk:

  references of rows     0     0        1 or more
  cached                 no    yes      either
  the page is            free  idle     in use
"""

from collections.abc import Iterable


class PagePool:
  """Page ids 0 .. num_pages - 1 with reference counts.

  A wrong call (a page released twice, an id of no page) raises ValueError: it
  is a defect of the caller, not of a user's input.
  """

  def __init__(self, num_pages: int):
    if num_pages < 1:
      raise ValueError(f'num_pages={num_pages}: a pool needs at least one page')
    self.num_pages = num_pages
    self._counts = [0] * num_pages
    self._is_cached = bytearray(num_pages)
    self._free = list(range(num_pages - 1, -1, -1))
    self._num_idle = 0

  @property
  def num_free(self) -> int:
    """Pages that nobody refers to."""
    return len(self._free)

  @property
  def num_idle(self) -> int:
    """Pages that only the prefix cache refers to."""
    return self._num_idle

  def count(self, page: int) -> int:
    """References to a page, the prefix cache's included."""
    self._check_id(page)
    return self._counts[page]

  def is_cached(self, page: int) -> bool:
    """Whether the prefix cache refers to the page."""
    self._check_id(page)
    return bool(self._is_cached[page])

  def counts(self) -> tuple[int, ...]:
    """References to each page."""
    return tuple(self._counts)

  def cached(self) -> list[int]:
    """Pages that the prefix cache refers to, ascending."""
    return [page for page, cached in enumerate(self._is_cached) if cached]

  def allocate(self, num_pages: int) -> list[int] | None:
    """Takes free pages, one reference each: all of them or none (None)."""
    if num_pages < 0:
      raise ValueError(f'cannot allocate {num_pages} pages')
    if num_pages > len(self._free):
      return None
    pages = [self._free.pop() for _ in range(num_pages)]
    for page in pages:
      self._counts[page] = 1
    return pages

  def share(self, pages: Iterable[int]) -> None:
    """Adds a reference to pages that somebody holds already."""
    for page in pages:
      self._check_taken(page, 'shared')
      self._num_idle -= self._is_idle(page)
      self._counts[page] += 1

  def release(self, pages: Iterable[int]) -> None:
    """Gives a reference back; a page without any is free again."""
    for page in pages:
      self._check_taken(page, 'released')
      if self._is_idle(page):
        raise ValueError(
          f'page {page} released by a row, but only the prefix cache holds it'
        )
      self._drop(page)
      self._num_idle += self._is_idle(page)

  def cache(self, page: int) -> None:
    """Adds the prefix cache's reference to a page that a row holds."""
    self._check_taken(page, 'cached')
    if self._is_cached[page]:
      raise ValueError(f'page {page} is in the prefix cache already')
    self._is_cached[page] = 1
    self._counts[page] += 1

  def uncache(self, page: int) -> None:
    """Takes the prefix cache's reference away; an idle page becomes free."""
    self._check_taken(page, 'forgotten')
    if not self._is_cached[page]:
      raise ValueError(f'page {page} is not in the prefix cache')
    self._num_idle -= self._is_idle(page)
    self._is_cached[page] = 0
    self._drop(page)

  def check(self) -> None:
    """Raises ValueError unless free, idle and taken pages add up."""
    if len(set(self._free)) != len(self._free):
      raise ValueError('a page is on the free list twice')
    free, idle = set(self._free), 0
    for page, count in enumerate(self._counts):
      idle += bool(self._is_cached[page]) and count == 1
      if count < self._is_cached[page] or (count == 0) != (page in free):
        raise ValueError(
          f'page {page} has {count} references, cached:'
          f' {bool(self._is_cached[page])}, on the free list: {page in free}'
        )
    if idle != self._num_idle:
      raise ValueError(f'{idle} pages are idle but {self._num_idle} counted')

  def _is_idle(self, page):
    return bool(self._is_cached[page]) and self._counts[page] == 1

  def _drop(self, page):
    self._counts[page] -= 1
    if not self._counts[page]:
      self._free.append(page)

  def _check_taken(self, page, verb):
    self._check_id(page)
    if not self._counts[page]:
      raise ValueError(f'page {page} {verb}, but it is free')

  def _check_id(self, page):
    if not 0 <= page < self.num_pages:
      raise ValueError(
        f'page {page} is none of the {self.num_pages} of the pool'
      )
