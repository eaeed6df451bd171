# SPDX-License-Identifier: MIT
"""Every page has owners, and a page that is written has one."""

import pytest

from jspec.serve import ledger


def test_row_gets_its_cached_prefix_and_pages_for_the_rest():
  books = ledger.Ledger(6, 4)
  tokens = list(range(14))
  pages, num_cached = books.admit(tokens, 15, None)
  assert (len(pages), num_cached) == (4, 0)
  books.keep(tokens, pages, 13, None)
  books.check([(pages, 13)])
  books.retire(pages, 13, None)
  books.check([])
  again, num_cached = books.admit(tokens, 17, None)
  # 12 of 13 rows: at least one is left to run.
  assert (again[:3], len(again), num_cached) == (pages[:3], 5, 12)
  short, num_cached = books.admit(tokens[:13], 9, None)
  # Its 12 rows lie in three full pages, but one row must be run.
  assert (short[:2], len(short), num_cached) == (pages[:2], 3, 8)


def test_no_page_is_taken_when_pages_lack():
  books = ledger.Ledger(4, 4)
  tokens = list(range(9))
  pages, _ = books.admit(tokens, 9, None)
  books.keep(tokens, pages, 8, None)
  books.retire(pages, 8, None)
  before = books.pool.counts()
  assert books.admit([*tokens, 9], 17, None) is None
  assert books.grow(5) is None
  assert books.pool.counts() == before and books.num_available == 4
  # Cached pages are evicted only as far as needed.
  assert len(books.grow(3)) == 3 and books.pool.num_idle == 1


def test_pages_in_flight_come_back_with_their_launch():
  books = ledger.Ledger(4, 4)
  pages, _ = books.admit([1, 2], 16, None)
  books.retire(pages, 1, 7)
  assert (books.num_available, books.num_held) == (0, 4)
  books.check([])
  books.come_back(6)
  assert books.num_available == 0
  books.come_back(7)
  assert (books.num_available, books.num_held) == (4, 0)


def test_held_page_of_another_row_does_not_count_as_coming_back():
  books = ledger.Ledger(4, 2)
  tokens = [1, 2, 3, 4]
  pages, _ = books.admit(tokens, 4, None)
  books.keep(tokens, pages, 3, None)
  other, num_cached = books.admit(tokens, 4, None)
  assert num_cached == 2
  books.retire(pages, 3, 1)
  assert books.num_held == 1  # The shared page stays with the other row.
  books.retire(other, 2, 1)
  assert books.num_held == 3
  books.check([])


@pytest.mark.parametrize(
  'rows, message',
  [
    (lambda pages: [], 'has 1 references but 0 owners'),
    (lambda pages: [(pages, 3), (pages, 3)], 'has 1 references but 2 owners'),
  ],
)
def test_check_sees_pages_nobody_or_everybody_owns(rows, message):
  books = ledger.Ledger(2, 4)
  pages, _ = books.admit([1, 2, 3, 4], 5, None)
  books.check([(pages, 3)])
  with pytest.raises(ValueError, match=message):
    books.check(rows(pages))


def test_check_sees_a_shared_page_that_is_written():
  books = ledger.Ledger(2, 4)
  tokens = [1, 2, 3, 4, 5]
  pages, _ = books.admit(tokens, 5, None)
  books.keep(tokens, pages, 4, None)
  books.check([(pages, 4)])
  with pytest.raises(ValueError, match='is written by a row but has 2 owners'):
    books.check([(pages, 3)])
