# SPDX-License-Identifier: MIT
"""Documents are drawn by their domain's weight, each domain epoch by epoch."""

import collections

import pytest

from jspec import errors
from jspec.data import mixture

# Of ten documents with seed 0, over two epochs.
ORDER = [6, 9, 4, 5, 8, 2, 7, 0, 1, 3, 9, 0, 7, 8, 6, 3, 4, 5, 2, 1]
DOMAINS = ['math'] * 10 + ['chat'] * 30 + ['code'] * 5


def drawn(num, seed=0, **changes):
  given = {'weights': {'math': 3.0, 'chat': 1.0, 'code': 0.0}} | changes
  order = mixture.Order(range(45), seed=seed, domains=DOMAINS, **given)
  return [order.draw() for _ in range(num)]


def test_shares_are_the_weights_at_every_length():
  for num in (40, 400, 4000):
    counts = collections.Counter(DOMAINS[n] for n in drawn(num))
    assert counts['code'] == 0
    assert abs(counts['math'] - 3 * num / 4) <= 1


def test_a_domain_is_seen_whole_before_it_is_seen_again():
  math = [n for n in drawn(400) if DOMAINS[n] == 'math']
  epochs = [math[i : i + 10] for i in range(0, 300, 10)]
  assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
  assert epochs[0] != epochs[1]


def test_no_weights_draw_every_document_once_an_epoch():
  numbers = drawn(90, weights=None)
  assert sorted(numbers[:45]) == sorted(numbers[45:]) == list(range(45))
  assert numbers != drawn(90, weights=None, seed=1)


def test_shares_hold_for_many_domains_and_odd_weights():
  weights = {'math': 0.7, 'chat': 0.001, 'code': 13.0}
  total = sum(weights.values())
  counts = collections.Counter(DOMAINS[n] for n in drawn(3000, weights=weights))
  for name, weight in weights.items():
    assert abs(counts[name] - 3000 * weight / total) <= 1


def test_an_order_goes_on_from_what_was_drawn():
  weights = {'math': 3.0, 'chat': 1.0, 'code': 2.0}
  given = dict(seed=3, domains=DOMAINS, weights=weights)
  first, second = (mixture.Order(range(45), **given) for _ in range(2))
  for _ in range(77):
    first.draw()
  second.drawn = dict(first.drawn)
  assert [first.draw() for _ in range(99)] == [second.draw() for _ in range(99)]


def test_a_set_of_one_is_drawn_again_and_again():
  order = mixture.Order([7], seed=0)
  assert [order.draw() for _ in range(3)] == [7, 7, 7]


def test_one_weight_is_one_domain():
  numbers = drawn(20, weights={'math': 1.0, 'chat': 0.0, 'code': 0.0})
  assert sorted(numbers[:10]) == sorted(numbers[10:]) == list(range(10))


def test_domains_and_weights_must_be_of_each_other():
  with pytest.raises(errors.UserError, match='no `chat`'):
    drawn(1, weights={'math': 1.0, 'code': 1.0})
  with pytest.raises(errors.UserError, match='names `prose`'):
    drawn(1, weights={'math': 1.0, 'chat': 1.0, 'code': 1.0, 'prose': 1.0})


def test_the_order_is_the_same_in_every_version():
  order = mixture.Order(range(10), seed=0)
  assert [order.draw() for _ in range(20)] == ORDER
