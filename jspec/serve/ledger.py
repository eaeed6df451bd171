# SPDX-License-Identifier: MIT
"""`Ledger`: who owns which page: nobody, the prefix cache, a row, a launch.

  grow      free pages, and idle ones of the prefix cache, go to a row
  keep      the prefix cache knows a row's full pages too
  retire    a row gives its pages back, or leaves them to launches in flight
  come_back those launches give them back

A row that ends while a launch runs it keeps its pages until that launch has
come back, for the device may still write to them. Its full pages below the rows
known to be written are never written again, so others may read them at once.
"""

import collections
from collections.abc import Hashable, Iterable, Sequence

from jspec.serve import pages as pages_lib
from jspec.serve import prefix_trie


class Ledger:
  """The pool, the prefix cache and the pages that launches still hold."""

  def __init__(self, num_pages: int, page_size: int):
    self.page_size = page_size
    self.pool = pages_lib.PagePool(num_pages)
    self.trie = prefix_trie.PrefixTrie(self.pool, page_size)
    self._held = []  # (launch, pages, num_rows)

  @property
  def num_available(self) -> int:
    """Pages that can be had now, by forgetting cached ones if need be."""
    return self.pool.num_free + self.pool.num_idle

  @property
  def num_held(self) -> int:
    """Pages that become available once the launches in flight are back."""
    held = collections.Counter(
      page for _, pages, _ in self._held for page in pages
    )
    return sum(
      self.pool.count(page) == count + self.pool.is_cached(page)
      for page, count in held.items()
    )

  def num_pages(self, num_rows: int) -> int:
    """Pages that hold so many rows."""
    return -(-num_rows // self.page_size)

  def admit(
    self, tokens: Sequence[int], num_rows: int, namespace: Hashable
  ) -> tuple[tuple[int, ...], int] | None:
    """Pages for a row, its cached prefix first.

    Args:
      tokens: the prompt, anchor last. Of its len(tokens) - 1 rows at least one
        is left to run, since drafters rebuild their state of a row from it.
      num_rows: rows to have room for.
      namespace: whose rows.

    Returns:
      Page ids and the number of cached tokens, or None if pages lack.
    """
    hit = self.trie.match(tokens, len(tokens) - 2, namespace)
    pages = self.grow(self.num_pages(num_rows) - len(hit))
    if pages is None:
      self.pool.release(hit)
      return None
    return (*hit, *pages), len(hit) * self.page_size

  def grow(self, num_pages: int) -> tuple[int, ...] | None:
    """So many pages, evicting cached ones if need be; None if pages lack."""
    if num_pages > self.num_available:
      return None
    self.trie.evict(num_pages - self.pool.num_free)
    return tuple(self.pool.allocate(num_pages))

  def forget(self) -> None:
    """Empties the prefix cache of all that no row holds."""
    self.trie.evict(self.pool.num_pages)

  def keep(
    self,
    tokens: Sequence[int],
    pages: Sequence[int],
    num_rows: int,
    namespace: Hashable,
  ) -> None:
    """Puts a row's full pages into the prefix cache; the row keeps its own.

    Args:
      tokens: of the row, the one behind its last row included.
      pages: of the row.
      num_rows: rows known to be written.
      namespace: whose rows.
    """
    full = pages[: num_rows // self.page_size]
    self.trie.insert(tokens, full, namespace)

  def retire(
    self, pages: Sequence[int], num_rows: int, launch: int | None
  ) -> None:
    """Takes back a row's pages, once `launch` has come back if one is named."""
    if launch is None:
      self.pool.release(pages)
    else:
      self._held.append((launch, tuple(pages), num_rows))

  def come_back(self, launch: int) -> None:
    """Releases what launches up to this one held."""
    for number, pages, _ in self._held:
      if number <= launch:
        self.pool.release(pages)
    self._held = [entry for entry in self._held if entry[0] > launch]

  def check(self, rows: Iterable[tuple[Sequence[int], int]]) -> None:
    """Raises ValueError unless every page is accounted for.

    Args:
      rows: pages of each row, and its rows known to be written. All pages
        behind those are written by that row, so nobody else may know them.
    """
    self.pool.check()
    rows = [*rows, *((pages, known) for _, pages, known in self._held)]
    cached = list(self.trie.pages())
    owners = collections.Counter(cached)
    for pages, _ in rows:
      owners.update(pages)
    for page, count in enumerate(self.pool.counts()):
      if count != owners[page]:
        raise ValueError(
          f'page {page} has {count} references but {owners[page]} owners'
        )
    if sorted(cached) != self.pool.cached():
      raise ValueError('the prefix cache and its marks in the pool differ')
    for pages, num_rows in rows:
      for page in pages[num_rows // self.page_size :]:
        if owners[page] != 1:
          raise ValueError(
            f'page {page} is written by a row but has {owners[page]} owners'
          )
