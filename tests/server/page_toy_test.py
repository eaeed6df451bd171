# SPDX-License-Identifier: MIT
"""The page over an engine that decodes: drafts or none, one text."""

import pytest

from tests.server import browsing, toy_engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def server():
  _, engine = toy_engine.make()
  with toy_engine.serving(engine) as found:
    yield found


@pytest.mark.parametrize('is_at_once', [False, True])
@pytest.mark.parametrize('temperature', ['0', '0.9'])
def test_side_by_side_is_identical(server, temperature, is_at_once):
  origins = set()
  with (
    browsing.browser() as browser,
    browsing.page(browser, server.url) as page,
  ):
    page.fill('#temperature', temperature)
    page.fill('#tokens', str(toy_engine.MAX_TOKENS))
    page.set_checked('#at-once', is_at_once)
    page.check('#compare')
    for text in ('abab', 'cdcdcd', 'aab'):
      page.click('#clear')
      browsing.ask(page, text)
      browsing.ended(page)
      assert 'identical, all ' in page.text_content('.verdict')
      origins |= {kind for _, kind in browsing.tokens(page, 0)}
      plain = {kind for _, kind in browsing.tokens(page, 1)}
      assert plain == {'plain'}
      rounds = page.get_attribute('#sizes', 'aria-label')
      told = [part.split(':') for part in rounds.split(', ')]
      num = sum(int(a.split()[0]) * int(b.split()[0]) for a, b in told)
      assert num == len(browsing.tokens(page, 0))
  # Otherwise nothing was compared. Whether two at once draft is the guard's to
  # say, and hot answers of the toy repeat nothing.
  assert is_at_once or temperature != '0' or {'draft', 'bonus'} <= origins
