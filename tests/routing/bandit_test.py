# SPDX-License-Identifier: MIT
"""The bandit finds the fastest drafter of each domain, and follows changes."""

import numpy as np
import pytest

from jspec.routing import bandit, base

TEXTS = {
  'code': 'Write a python function.\n```python\ndef f(x):\n```',
  'math': 'How many apples are 3 bags of 12 apples and 5 more in total?',
  'chat': 'Hello, how do you feel about the story I told you?',
}
SPEEDS = {
  'code': {'a': 60.0, 'b': 100.0, 'c': 50.0},
  'math': {'a': 80.0, 'b': 60.0, 'c': 55.0},
  'chat': {'a': 40.0, 'b': 42.0, 'c': 60.0},
}


def run(router, speeds, number, seed=0, lag=0):
  """Share of the best speed that was reached, by domain."""
  rng = np.random.default_rng(seed)
  away, reached = [], {domain: [] for domain in TEXTS}
  for i in range(number):
    domain = ('code', 'math', 'chat')[i % 3]
    choice = router.choose(base.Request('m', None, TEXTS[domain]))
    speed = speeds[domain][choice.drafter]
    reached[domain].append(speed / max(speeds[domain].values()))
    load = rng.uniform(0.5, 1.0)  # All drafters are slow when many ask.
    seconds = 100 / (speed * load * rng.lognormal(0, 0.2))
    away.append((choice, base.Result(101, seconds, 50)))
    if len(away) > lag:
      router.observe(*away.pop(0))
  return {domain: np.mean(x) for domain, x in reached.items()}


@pytest.mark.parametrize('lag', [0, 16])
def test_each_domain_ends_with_its_fastest_drafter(lag):
  router = bandit.Bandit(('a', 'b', 'c'))
  run(router, SPEEDS, 300, lag=lag)
  late = run(router, SPEEDS, 900, seed=1, lag=lag)
  assert all(share > 0.93 for share in late.values()), late
  best = {d: max(v, key=v.get) for d, v in router.tokens_per_second().items()}
  assert best == {'code': 'b', 'math': 'a', 'chat': 'c'}


def test_a_fixed_choice_reaches_less():
  """Negative control: the bound above needs a choice."""
  for drafter in 'abc':
    fixed = run(bandit.Bandit((drafter,)), SPEEDS, 90)
    assert min(fixed.values()) < 0.8


def test_a_drafter_that_gets_slow_is_left():
  router = bandit.Bandit(('a', 'b', 'c'), half_life=64)
  run(router, SPEEDS, 600)
  changed = {**SPEEDS, 'code': {'a': 60.0, 'b': 20.0, 'c': 50.0}}
  run(router, changed, 300, seed=1)
  assert run(router, changed, 600, seed=2)['code'] > 0.9
  # Without forgetting and tries it would stay for long.
  stubborn = bandit.Bandit(('a', 'b', 'c'), half_life=1e9, width=0)
  run(stubborn, SPEEDS, 600)
  assert run(stubborn, changed, 300, seed=1)['code'] < 0.6


def test_requests_that_went_wrong_teach_nothing():
  router = bandit.Bandit(('a', 'b'))
  for _ in range(20):
    choice = router.choose(base.Request('m', None, TEXTS['code']))
    router.observe(choice, base.Result(0, 0.0, 0))
  assert router.tokens_per_second()['code'] == {}


def test_requests_on_their_way_are_spread_over_what_is_unknown():
  router = bandit.Bandit(('a', 'b', 'c'))
  names = [
    router.choose(base.Request('m', None, TEXTS['chat'])).drafter
    for _ in range(9)
  ]
  assert sorted(names) == sorted('abc' * 3)
