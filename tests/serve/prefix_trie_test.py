# SPDX-License-Identifier: MIT
"""The trie finds what a table of all prefixes finds, and evicts by last use."""

import numpy as np
import pytest

from jspec.serve import pages, prefix_trie

SIZE = 2


def make(num_pages=8):
  pool = pages.PagePool(num_pages)
  return pool, prefix_trie.PrefixTrie(pool, SIZE)


def put(pool, trie, tokens, namespace=None):
  """Inserts all full pages of a text whose row ends at once."""
  count = (len(tokens) - 1) // SIZE
  own = pool.allocate(count)
  known = trie.insert(tokens, own, namespace)
  pool.release(own)
  return known


def find(pool, trie, tokens, namespace=None, max_tokens=None):
  most = len(tokens) if max_tokens is None else max_tokens
  found = trie.match(tokens, most, namespace)
  pool.release(found)
  return found


def test_longest_prefix_in_whole_pages_is_shared():
  pool, trie = make()
  known = put(pool, trie, [1, 2, 3, 4, 5])
  assert len(known) == 2 and trie.num_cached_tokens == 4
  found = trie.match([1, 2, 3, 4, 5, 6], 6, None)
  assert found == known and pool.num_idle == 0
  pool.release(found)
  assert find(pool, trie, [1, 2, 3, 9, 5]) == known[:1]
  assert find(pool, trie, [9, 2, 3, 4, 5]) == []
  assert find(pool, trie, [1, 2, 3, 4, 5], max_tokens=3) == known[:1]
  assert find(pool, trie, [1, 2, 3, 4, 5], max_tokens=1) == []
  assert find(pool, trie, [1], max_tokens=-1) == []


def test_page_is_known_by_the_token_behind_it_too():
  pool, trie = make()
  known = put(pool, trie, [1, 2, 3])
  assert find(pool, trie, [1, 2, 3, 4]) == known
  assert find(pool, trie, [1, 2, 7, 4]) == []
  # Its successor is not known, so neither is what its last row holds.
  assert find(pool, trie, [1, 2]) == []


def test_partial_page_is_never_taken():
  pool, trie = make()
  own = pool.allocate(2)
  assert trie.insert([1, 2, 3, 4], own, None) == own[:1]
  assert trie.insert([5, 6], own[1:], None) == []
  assert list(trie.pages()) == own[:1]


def test_older_page_stays_and_the_caller_hears_of_it():
  pool, trie = make()
  [older] = put(pool, trie, [1, 2, 3])
  own = pool.allocate(2)
  assert trie.insert([1, 2, 3, 4, 5], own, None) == [older, own[1]]
  assert not pool.is_cached(own[0])
  assert find(pool, trie, [1, 2, 3, 4, 5]) == [older, own[1]]


def test_other_namespace_is_a_miss():
  pool, trie = make()
  first = put(pool, trie, [1, 2, 3], ('dflash', 1))
  assert find(pool, trie, [1, 2, 3], ('dflash', 2)) == []
  second = put(pool, trie, [1, 2, 3], ('dflash', 2))
  assert find(pool, trie, [1, 2, 3], ('dflash', 1)) == first != second


def test_least_recently_used_leaf_goes_first():
  pool, trie = make()
  a = put(pool, trie, [1, 2, 3, 4, 5])
  b = put(pool, trie, [6, 7, 8])
  c = put(pool, trie, [1, 2, 3, 9, 9])
  find(pool, trie, [1, 2, 3, 4, 5])
  assert trie.evict(1) == 1  # b: the others were used since.
  assert not pool.is_cached(b[0])
  assert trie.evict(1) == 1  # c[1]; c[0] is a[0], which leads to a[1].
  assert not pool.is_cached(c[1])
  assert sorted(trie.pages()) == sorted(a)
  assert trie.evict(5) == 2
  assert trie.num_cached_tokens == 0 and pool.num_free == 8
  assert trie._roots == {}


def test_page_in_use_is_not_evicted():
  pool, trie = make()
  put(pool, trie, [1, 2, 3])
  put(pool, trie, [4, 5, 6])
  held = trie.match([1, 2, 3], 2, None)
  assert trie.evict(2) == 1
  assert list(trie.pages()) == held
  pool.release(held)
  assert trie.evict(2) == 1 and pool.num_free == 8


def test_idle_page_before_one_in_use_can_be_had():
  pool, trie = make()
  [older] = put(pool, trie, [1, 2, 3])
  own = pool.allocate(2)  # A row that did not find `older`.
  trie.insert([1, 2, 3, 4, 5], own, None)
  assert pool.num_idle == 1
  assert trie.evict(1) == 1
  assert not pool.is_cached(older) and pool.count(own[1]) == 1
  pool.check()


def test_counters_count_what_is_recorded():
  _, trie = make()
  trie.record(10, 4)
  trie.record(5, 0)
  assert (trie.num_queries, trie.num_queried_tokens) == (2, 15)
  assert trie.num_hit_tokens == 4


def evict(table, used, in_use, count):
  """The rule, by looking at everything: which prefixes are forgotten."""
  gone = set()
  while count:
    left = table.keys() - gone
    leaves = [p for p in left if not any(p == o[:-SIZE] for o in left)]
    idle = [p for p in leaves if table[p] not in in_use]
    prefix = min(idle or leaves, key=used.get)
    gone.add(prefix)
    count -= table[prefix] not in in_use
  return gone


def compare(make_trie, seed):
  """Random calls on a trie and on a table of prefixes."""
  rng = np.random.default_rng(seed)
  pool = pages.PagePool(12)
  trie = make_trie(pool, SIZE)
  table, used, held = {}, {}, []  # prefix -> page, prefix -> last use
  for now in range(150):
    tokens = tuple(int(t) for t in rng.integers(0, 2, rng.integers(1, 9)))
    prefixes = [tokens[: end + 1] for end in range(SIZE, len(tokens), SIZE)]
    action = rng.integers(5)
    if action == 0:
      own = pool.allocate(len(prefixes))
      if own is None:
        continue
      known = trie.insert(tokens, own, None)
      for prefix, page in zip(prefixes, own, strict=True):
        table.setdefault(prefix, page)
        used[prefix] = now
      assert known == [table[prefix] for prefix in prefixes]
      held.append(own)
    elif action == 1:
      found = trie.match(tokens, len(tokens), None)
      hits = [prefix for prefix in prefixes if prefix in table]
      assert found == [table[prefix] for prefix in hits]
      used |= dict.fromkeys(hits, now)
      held.append(found)
    elif action in (2, 3) and held:
      pool.release(held.pop(rng.integers(len(held))))
    else:
      count = min(int(rng.integers(1, 4)), pool.num_idle)
      assert trie.evict(count) == count
      in_use = {page for own in held for page in own}
      for prefix in evict(table, used, in_use, count):
        del table[prefix]
    pool.check()
    assert sorted(trie.pages()) == sorted(table.values()) == pool.cached()
    assert trie.num_cached_tokens == SIZE * len(table)
  assert len(trie._leaves) < 200


def test_trie_agrees_with_a_table_of_prefixes():
  for seed in range(6):
    compare(prefix_trie.PrefixTrie, seed)


class NewestFirst(prefix_trie.PrefixTrie):
  """Evicts what was used last."""

  def _pop(self):
    self._leaves.sort(reverse=True)
    return super()._pop()


class NeverTouches(prefix_trie.PrefixTrie):
  """Does not see that a page was used again."""

  def match(self, tokens, max_tokens, namespace):
    leaves, now = list(self._leaves), self._now
    before = {id(entry[-1]): entry[-1].used for entry in leaves}
    found = super().match(tokens, max_tokens, namespace)
    for _, _, node in leaves:
      node.used = before[id(node)]
    self._leaves, self._now = leaves, now + 1
    return found


class ForgetsSuccessors(prefix_trie.PrefixTrie):
  """Knows a page by its own tokens."""

  def _key(self, tokens, index):
    return super()._key(tokens, index)[: self._page_size]


@pytest.mark.parametrize(
  'broken', [NewestFirst, NeverTouches, ForgetsSuccessors]
)
def test_broken_trie_is_caught(broken):
  with pytest.raises((AssertionError, KeyError)):
    for seed in range(6):
      compare(broken, seed)
