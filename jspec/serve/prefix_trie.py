# SPDX-License-Identifier: MIT
r"""`PrefixTrie`: which pages hold the rows of which tokens.

A radix trie whose edges are whole pages, one root for each namespace:

  namespace --[a b c d | e]-- page 7 --[e f g h | i]-- page 2
                                    \--[e f g x | y]-- page 5

Beside the tokens of a page an edge names the one behind them: a drafter may
keep, with the row of a token, something of its successor (`Committed.shifted`),
so the last row of a page is only the same when that is too. A prompt that
leaves a known text exactly at the end of a page therefore misses that page.

A page holds the rows of a target and of one drafter, so the namespace names
whatever decides them besides the tokens (drafter group and version): a page
without the drafter's rows is a miss. A page in the trie is full and only read.
Time is a counter of calls.
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence

from jspec.serve import pages as pages_lib


class _Node:
  """A page below its parent; a root has no page."""

  __slots__ = ('children', 'key', 'page', 'parent', 'serial', 'used')

  def __init__(self, key, page, parent, used, serial):
    self.key, self.page, self.parent = key, page, parent
    self.used, self.serial = used, serial
    self.children = {}


class PrefixTrie:
  """Finds pages by the tokens they hold.

  Attributes:
    num_queries: prompts recorded.
    num_queried_tokens: their tokens.
    num_hit_tokens: how many of those were found.
  """

  def __init__(self, pool: pages_lib.PagePool, page_size: int):
    self.num_queries = self.num_queried_tokens = self.num_hit_tokens = 0
    self._pool, self._page_size = pool, page_size
    self._roots = {}
    self._num_nodes = 0
    self._now = self._serial = 0
    # Leaves by last use. An entry is stale once its node has gone, has children
    # or was used again; stale ones are skipped when they come up.
    self._leaves = []

  @property
  def num_cached_tokens(self) -> int:
    """Tokens whose rows can be found."""
    return self._num_nodes * self._page_size

  def pages(self) -> Iterator[int]:
    """All pages in the trie."""
    nodes = list(self._roots.values())
    while nodes:
      children = nodes.pop().children.values()
      nodes.extend(children)
      yield from (node.page for node in children)

  def match(
    self, tokens: Sequence[int], max_tokens: int, namespace: Hashable
  ) -> list[int]:
    """The pages of the longest known prefix, shared for the caller.

    Args:
      tokens: the whole text, the token behind the last page included.
      max_tokens: most tokens to find; rounded down to whole pages.
      namespace: whose rows.

    Returns:
      Page ids in order. The caller releases them to the pool.
    """
    self._now += 1
    node, found = self._roots.get(namespace), []
    while node is not None and len(found) < max_tokens // self._page_size:
      node = node.children.get(self._key(tokens, len(found)))
      if node is not None:
        node.used = self._now
        found.append(node)
    if found and not found[-1].children:
      self._push(found[-1])
    matched = [node.page for node in found]
    self._pool.share(matched)
    return matched

  def record(self, num_tokens: int, num_hit: int) -> None:
    """Counts a query. A prompt that waits is matched often, but counts once."""
    self.num_queries += 1
    self.num_queried_tokens += num_tokens
    self.num_hit_tokens += num_hit

  def insert(
    self, tokens: Sequence[int], pages: Sequence[int], namespace: Hashable
  ) -> list[int]:
    """Makes full, committed pages known; the caller keeps its own references.

    Args:
      tokens: the text, with the token behind the last page; a page whose last
        row or successor is not among them is left out.
      pages: pages of the text from its beginning, held by the caller.
      namespace: whose rows.

    Returns:
      The page by which each is known now. An older one stays: the caller may
      go on with its own, which nobody else finds.
    """
    self._now += 1
    count = min(len(pages), max(len(tokens) - 1, 0) // self._page_size)
    if not count:
      return []
    node = self._roots.get(namespace)
    if node is None:
      node = self._roots[namespace] = _Node(namespace, -1, None, 0, 0)
    known = []
    for i, page in enumerate(pages[:count]):
      key = self._key(tokens, i)
      child = node.children.get(key)
      if child is None:
        self._pool.cache(page)
        self._serial += 1
        child = _Node(key, page, node, self._now, self._serial)
        node.children[key] = child
        self._num_nodes += 1
      child.used = self._now
      known.append(child.page)
      node = child
    if not node.children:
      self._push(node)
    return known

  def evict(self, num_pages: int) -> int:
    """Frees pages that nobody but the trie holds, least recently used first.

    A page goes before those that lead to it. Where an idle page leads to one in
    use, the latter is forgotten too (its row keeps it), so that every idle page
    can be had.

    Returns:
      How many were freed: `num_pages`, or all idle ones if those are fewer.
    """
    wanted = min(num_pages, self._pool.num_idle)
    freed, in_use = 0, {}
    while freed < wanted:
      leaf = self._pop()
      if leaf is None:
        serial = min(in_use, key=lambda serial: (in_use[serial].used, serial))
        leaf = in_use.pop(serial)
      elif self._pool.count(leaf.page) > 1:
        in_use[leaf.serial] = leaf
        continue
      else:
        freed += 1
      self._remove(leaf)
    for leaf in in_use.values():
      self._push(leaf)
    return freed

  def _key(self, tokens, index):
    begin = index * self._page_size
    return tuple(tokens[begin : begin + self._page_size + 1])

  def _push(self, leaf):
    if len(self._leaves) > 2 * self._num_nodes + 64:
      self._leaves = [entry for entry in self._leaves if self._is_valid(entry)]
      heapq.heapify(self._leaves)
    heapq.heappush(self._leaves, (leaf.used, leaf.serial, leaf))

  def _pop(self):
    """The leaf used longest ago; None when there is no other."""
    while self._leaves:
      entry = heapq.heappop(self._leaves)
      if self._is_valid(entry):
        return entry[-1]
    return None

  def _is_valid(self, entry):
    used, _, node = entry
    return node.page >= 0 and not node.children and node.used == used

  def _remove(self, leaf):
    self._pool.uncache(leaf.page)
    leaf.page = -1
    self._num_nodes -= 1
    parent = leaf.parent
    del parent.children[leaf.key]
    if parent.children:
      return
    if parent.parent is None:
      del self._roots[parent.key]
    else:
      self._push(parent)
