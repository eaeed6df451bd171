# SPDX-License-Identifier: MIT
"""Routers: each as promised, and all by one suite."""

import pytest

from jspec import errors
from jspec.routing import bandit, base, report, rules
from jspec.testing import router_suite

NAMES = ('a', 'b')
CODE = 'def f(x):\n  return x'
CHAT = 'Hello, how do you feel today?'


class Wrong:
  """Chooses somebody whom nobody serves."""

  def choose(self, request):
    return base.Choice('c', 'why not')

  def observe(self, choice, result):
    pass


def ask(text='', drafter=None, model='m'):
  return base.Request(model, drafter, text)


@pytest.mark.parametrize(
  'make',
  [
    rules.ByField,
    lambda: rules.ByModel({'model-1': 'b'}),
    lambda: rules.ByDomain({'code': 'a', 'math': 'b'}),
    lambda: bandit.Bandit(NAMES),
    lambda: report.Reported(rules.First([rules.ByField()]), 'a'),
  ],
)
def test_every_router_passes_the_suite(make):
  router_suite.check(make, NAMES)


def test_the_suite_catches_a_router_that_invents_a_drafter():
  with pytest.raises(AssertionError, match='nobody serves'):
    router_suite.check(Wrong, NAMES)


def test_the_first_that_decides_wins():
  router = rules.First(
    [
      rules.ByField(),
      rules.ByModel({'fast': 'b'}),
      rules.ByDomain({'code': 'a'}),
    ]
  )
  assert router.choose(ask(CODE, 'b', 'fast')).why == 'the request names it'
  assert router.choose(ask(CODE, None, 'fast')).drafter == 'b'
  assert router.choose(ask(CODE)).drafter == 'a'
  assert router.choose(ask(CHAT)) is None


def test_the_report_says_what_was_chosen_why_and_how_it_went():
  router = report.Reported(rules.ByDomain({'code': 'a'}), 'b')
  for text in (CODE, CODE, CHAT):
    router.observe(router.choose(ask(text)), base.Result(20, 2.0, 10))
  first, second = router.rows()
  assert (first['drafter'], first['num_requests']) == ('a', 2)
  assert 'code' in first['why'] and second['why'] == 'nobody decided'
  assert first['tokens_per_second'] == 10.0
  assert first['tokens_per_round'] == 2.0
  router.choose(ask(CHAT, None, 'new'))  # On its way: no speed of its own yet.
  assert router.rows()[1]['num_tokens'] == 20


def test_what_cannot_be_is_refused():
  with pytest.raises(
    errors.UserError, match="domain 'poems'.*chat, code, math"
  ):
    rules.ByDomain({'poems': 'a'})
  for wrong in ((), ('a', 'a')):
    with pytest.raises(errors.UserError, match='each once'):
      bandit.Bandit(wrong)
  with pytest.raises(errors.UserError, match='half_life=0'):
    bandit.Bandit(NAMES, half_life=0)
