# SPDX-License-Identifier: MIT
"""The pool counts references; wrong calls and wrong books are errors."""

import numpy as np
import pytest

from jspec.serve import pages


def test_allocation_is_all_or_nothing():
  pool = pages.PagePool(3)
  taken = pool.allocate(2)
  assert sorted(taken) == [0, 1] and pool.num_free == 1
  assert pool.allocate(2) is None and pool.num_free == 1
  assert pool.allocate(0) == []
  pool.release(taken)
  assert sorted(pool.allocate(3)) == [0, 1, 2]
  pool.check()


def test_shared_page_is_free_when_all_released_it():
  pool = pages.PagePool(1)
  page = pool.allocate(1)
  pool.share(page)
  pool.release(page)
  assert pool.num_free == 0 and pool.count(0) == 1
  pool.release(page)
  assert pool.num_free == 1


def test_cached_page_is_idle_once_no_row_holds_it():
  pool = pages.PagePool(2)
  [page] = pool.allocate(1)
  pool.cache(page)
  assert pool.num_idle == 0 and pool.cached() == [page]
  pool.release([page])
  assert (pool.num_idle, pool.num_free) == (1, 1)
  pool.share([page])
  assert pool.num_idle == 0
  pool.uncache(page)
  assert pool.count(page) == 1
  pool.cache(page)
  pool.release([page])
  pool.uncache(page)
  assert (pool.num_idle, pool.num_free) == (0, 2)
  pool.check()


@pytest.mark.parametrize(
  'call, message',
  [
    (lambda pool: pool.release([1]), 'page 1 released, but it is free'),
    (lambda pool: pool.share([1]), 'page 1 shared, but it is free'),
    (lambda pool: pool.cache(1), 'page 1 cached, but it is free'),
    (lambda pool: pool.uncache(0), 'not in the prefix cache'),
    (lambda pool: pool.release([0, 0]), 'page 0 released, but it is free'),
    (lambda pool: pool.release([2]), 'page 2 is none of the 2'),
    (lambda pool: pool.count(-1), 'page -1 is none of the 2'),
    (lambda pool: pool.allocate(-1), 'cannot allocate -1'),
    (lambda pool: pages.PagePool(0), 'at least one page'),
    (
      lambda pool: (pool.cache(0), pool.cache(0)),
      'in the prefix cache already',
    ),
    (
      lambda pool: (pool.cache(0), pool.release([0, 0])),
      'only the prefix cache holds it',
    ),
  ],
)
def test_wrong_call_is_an_error(call, message):
  pool = pages.PagePool(2)
  assert pool.allocate(1) == [0]
  with pytest.raises(ValueError, match=message):
    call(pool)


def test_books_balance_under_random_calls():
  rng = np.random.default_rng(0)
  pool = pages.PagePool(6)
  held, cached = [], set()
  for _ in range(400):
    action = rng.integers(5)
    if action == 0:
      held += pool.allocate(int(rng.integers(0, 3))) or []
    elif action == 1 and held:
      page = held[rng.integers(len(held))]
      pool.share([page])
      held.append(page)
    elif action == 2 and held:
      pool.release([held.pop(rng.integers(len(held)))])
    elif action == 3 and set(held) - cached:
      page = min(set(held) - cached)
      pool.cache(page)
      cached.add(page)
    elif action == 4 and cached:
      pool.uncache(cached.pop())
    pool.check()
    used = set(held) | cached
    assert pool.num_free == 6 - len(used)
    assert pool.num_idle == len(cached - set(held))
    assert pool.counts() == tuple(
      held.count(page) + (page in cached) for page in range(6)
    )


@pytest.mark.parametrize(
  'break_it, message',
  [
    (lambda pool: pool._free.append(0), 'page 0 has 1 references'),
    (lambda pool: pool._free.append(1), 'twice'),
    (lambda pool: pool._free.pop(), 'page 1 has 0 references'),
    (lambda pool: setattr(pool, '_num_idle', 1), '0 pages are idle but 1'),
  ],
)
def test_check_sees_broken_books(break_it, message):
  pool = pages.PagePool(2)
  pool.allocate(1)
  pool.check()
  break_it(pool)
  with pytest.raises(ValueError, match=message):
    pool.check()
