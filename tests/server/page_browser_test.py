# SPDX-License-Identifier: MIT
"""The page in a real browser, over an engine that decodes nothing."""

import pytest

from tests.server import browsing, fake, running

TEXT = 'Blue light scatters most.\n\n  def f(xs):\n    return x\n'


@pytest.fixture(scope='module')
def browser():
  with browsing.browser() as found:
    yield found


@pytest.fixture(scope='module')
def server():
  with running.serving(fake.Engine(fake.saying(TEXT))) as found:
    yield found


@pytest.fixture(autouse=True)
def as_new(request):
  """The engine of the module says TEXT again, at once."""
  if 'server' in request.fixturenames:
    engine = request.getfixturevalue('server').engine
    engine.says, engine.pause_s = fake.saying(TEXT), 0.0
    engine.asked.clear()
    engine.gate.set()


@pytest.fixture
def page(browser, server):
  with browsing.page(browser, server.url) as found:
    yield found


def answer(page, n=0):
  return page.locator('.text').nth(n).text_content()


def test_answer_is_told_token_by_token(page):
  browsing.ask(page, 'Why?')
  browsing.ended(page)
  assert answer(page) == TEXT
  found = browsing.tokens(page)
  # The end of the turn is a token that shows nothing.
  assert [text for text, _ in found] == [*TEXT, '']
  kinds = [kind for _, kind in found]
  assert kinds[:6] == ['draft', 'draft', 'bonus'] * 2
  assert page.locator('.asked').text_content() == 'Why?'
  assert page.text_content('#per-round') == '3.00'
  assert page.text_content('#depth') == '2.00'
  assert page.text_content('#accepted') == '100 %'
  figures = page.text_content('.answer .figures')
  assert 'tokens/s' in figures and 'drafter ngram: nobody' in figures
  assert 'launches so far' in page.get_attribute('#depths', 'aria-label')
  assert '3 tokens: ' in page.get_attribute('#sizes', 'aria-label')
  assert TEXT.strip() in page.text_content('#said')


def test_plain_tokens_look_plain(page):
  page.select_option('#drafter', 'none')
  browsing.ask(page, 'Why?')
  browsing.ended(page)
  assert {kind for _, kind in browsing.tokens(page)} == {'plain'}
  assert page.text_content('#accepted') == '–'
  colours = """name => getComputedStyle(
    document.querySelector('#legend .' + name)).borderBottomStyle"""
  styles = {page.evaluate(colours, n) for n in ('plain', 'draft', 'bonus')}
  assert styles == {'none', 'solid', 'dotted'}


@pytest.mark.parametrize(
  'text',
  [
    '<img src=x onerror="document.title = 1"><script>alert(1)</script>',
    '</div><style>* { display: none }</style><b>&lt;bold&gt;</b>',
    'caf\u00e9 \u2600\ufe0f \ud55c\uad6d \U0001f642 end',
  ],
)
def test_what_a_model_says_is_text(page, server, text):
  server.engine.says = fake.saying(text)
  browsing.ask(page, text)
  browsing.ended(page)
  assert answer(page) == text
  assert page.locator('.asked').text_content() == text
  inside = '[...document.querySelectorAll(".text *")].map((x) => x.localName)'
  assert set(page.evaluate(inside)) == {'span'}
  assert page.locator('.asked *').count() == 0
  assert page.title() == 'jspec'


def test_script_in_the_page_would_not_run(browser, server):
  """Were an answer ever put in as HTML, the policy would still refuse it."""
  refused = 'Content Security Policy'
  with browsing.page(browser, server.url, expected=refused) as page:
    page.evaluate(
      """() => {
        const made = document.createElement('script');
        made.textContent = 'document.title = 1';
        document.body.append(made);
      }"""
    )
    assert page.title() == 'jspec'


@pytest.mark.parametrize('how', ['button', 'key'])
def test_stop_frees_the_row(page, server, how):
  server.engine.says = fake.saying('x' * 400)
  server.engine.pause_s = 0.02
  page.fill('#prompt', 'Go on')
  page.click('#send')
  page.wait_for_selector('.text .draft')
  # Whoever pressed Send can press Stop at once.
  assert page.evaluate('document.activeElement.id') == 'stop'
  if how == 'button':
    page.keyboard.press('Enter')
  else:
    page.keyboard.press('Escape')
  browsing.ended(page)
  assert page.evaluate('document.activeElement.id') == 'send'
  assert page.text_content('.answer .figures').endswith('stopped')
  running.until(lambda: not server.engine.has_work)
  assert 0 < len(answer(page)) < 400


def test_side_by_side_compares_the_same_request(page, server):
  page.check('#compare')
  browsing.ask(page, 'Why?')
  page.wait_for_selector('.verdict')
  assert answer(page, 0) == answer(page, 1) == TEXT
  assert 'times as fast' in page.text_content('.verdict')
  assert f'identical, all {len(TEXT) + 1} tokens' in page.text_content(
    '.verdict'
  )
  first, second = server.engine.asked
  assert {first.drafter, second.drafter} == {'ngram', 'none'}
  assert first.params == second.params
  assert {kind for _, kind in browsing.tokens(page, 1)} == {'plain'}


def test_side_by_side_sees_a_difference(page, server):
  def says(prompt, ask):
    return fake.saying('same same' if ask.is_plain else 'same other')(0, 0)

  server.engine.says = says
  page.check('#compare')
  browsing.ask(page, 'Why?')
  page.wait_for_selector('.verdict')
  assert 'different from token 6 on' in page.text_content('.verdict')
  marked = page.locator('.differs')
  assert [marked.nth(i).text_content() for i in range(2)] == ['o', 's']


def test_stop_in_the_first_asks_no_second(page, server):
  server.engine.says = fake.saying('x' * 400)
  server.engine.pause_s = 0.02
  page.check('#compare')
  browsing.ask(page, 'Go on')
  page.wait_for_selector('.text .draft')
  page.keyboard.press('Escape')
  browsing.ended(page)
  assert len(server.engine.asked) == 1
  assert not page.locator('.verdict').count()
  figures = page.locator('.answer .figures').all_text_contents()
  assert all(text.endswith('stopped') for text in figures)


def test_settings_reach_the_engine(page, server):
  page.select_option('#drafter', 'suffix')
  page.select_option('#policy', 'static')
  page.fill('#drafts', '1')
  page.fill('#temperature', '0.7')
  page.fill('#tokens', '9')
  page.fill('#seed', '4')
  page.fill('#system', 'Be brief')
  browsing.ask(page, 'Why?')
  browsing.ended(page)
  (asked,) = server.engine.asked
  assert (asked.drafter, asked.max_drafts) == ('suffix', 1)
  assert asked.policy == 'static'
  params = asked.params
  assert (params.temperature, params.max_tokens, params.seed) == (0.7, 9, 4)
  assert page.text_content('.answer .figures').endswith('token limit')


def test_wrong_settings_are_not_sent(page, server):
  page.fill('#temperature', '3')
  browsing.ask(page, 'Why?')
  assert page.evaluate('document.activeElement.id') == 'temperature'
  assert page.input_value('#prompt') == 'Why?'
  assert server.engine.asked == []


def test_chat_goes_on_until_a_new_one(page, server):
  prompts = []

  def says(prompt, ask):
    prompts.append(bytes(t for t in prompt if t < 256).decode())
    return fake.saying('Because.')(prompt, ask)

  server.engine.says = says
  page.fill('#system', 'Be brief')
  for text in ('Why?', 'Really?'):
    browsing.ask(page, text)
    browsing.ended(page)
  page.click('#clear')
  assert page.is_visible('#examples') and not page.locator('.answer').count()
  page.click('#examples button >> nth=2')
  browsing.ended(page)
  assert 'Be brief' in prompts[0]
  assert all(part in prompts[1] for part in ('Why?', 'Because.', 'Really?'))
  assert 'Why?' not in prompts[2] and 'Why is the sky blue?' in prompts[2]


def test_refusal_is_one_line_and_the_message_stays(page):
  browsing.ask(page, 'x' * 2 * fake.CONTEXT_LEN)
  browsing.ended(page)
  told = page.text_content('#problem')
  assert str(fake.CONTEXT_LEN) in told and '\n' not in told
  assert len(page.input_value('#prompt')) == 2 * fake.CONTEXT_LEN
  assert not page.locator('.answer').count()


def test_broken_engine_is_told_in_the_middle(browser):
  engine = fake.Engine(fake.saying('x' * 300), pause_s=0.02)
  with (
    running.serving(engine) as server,
    browsing.page(browser, server.url) as page,
  ):
    browsing.ask(page, 'Why?')
    page.wait_for_selector('.text .draft')
    engine.broken = RuntimeError('boom')
    browsing.ended(page)
    assert 'the engine broke' in page.text_content('#problem')
    assert page.text_content('.answer .figures').endswith('failed')
    page.wait_for_selector('#load[data-status=broken]')


def test_server_that_is_gone_is_told(browser):
  with running.serving() as server:
    with browsing.page(browser, server.url) as page:
      page.wait_for_selector('#load[data-status=ready]')
      server.stop()
      browsing.ask(page, 'Why?')
      browsing.ended(page)
      assert 'cannot be reached' in page.text_content('#problem')
      page.wait_for_selector('#load-text:text-is("not reachable")')


def test_key_opens_and_is_kept_for_the_session_only(browser):
  with (
    running.serving(limits={'api_keys': ('secret',)}) as server,
    browsing.page(browser, server.url, is_ready=False) as page,
  ):
    page.wait_for_selector('#load[data-status=broken]')
    assert page.text_content('#load-text') == 'needs an API key'
    browsing.ask(page, 'Why?')
    browsing.ended(page)
    assert 'API key' in page.text_content('#problem')
    assert page.evaluate('document.activeElement.id') == 'key'
    page.keyboard.type('secret')
    page.keyboard.press('Tab')
    page.wait_for_selector('#load[data-status=ready]')
    browsing.ask(page, 'Why?')
    browsing.ended(page)
    assert answer(page)
    page.reload()
    page.wait_for_selector('#load[data-status=ready]')
    kept = 'JSON.stringify([localStorage, document.cookie, location.href])'
    assert 'secret' not in page.evaluate(kept)
    assert page.evaluate('Object.values(sessionStorage)') == ['secret']


def test_load_is_shown(page, server):
  server.engine.gate.clear()
  page.check('#compare')
  page.check('#at-once')
  browsing.ask(page, 'Why?')
  page.wait_for_selector('#load-text:text-is("2 of 4 running, 0 waiting")')
  server.engine.gate.set()
  browsing.ended(page)


@pytest.mark.parametrize('size', list(browsing.SIZES))
def test_nothing_is_wider_than_the_screen(browser, server, size):
  server.engine.says = fake.saying('word ' * 20 + 'x' * 100)
  with browsing.page(browser, server.url, size=size) as page:
    page.check('#compare')
    for details in ('#rounds', '#settings'):
      page.evaluate('id => document.querySelector(id).open = true', details)
    browsing.ask(page, 'y' * 80)
    page.wait_for_selector('.verdict')
    wide, _ = browsing.SIZES[size]
    found = page.evaluate(
      """wide => [...document.querySelectorAll('body *')].filter((x) =>
        x.getBoundingClientRect().right > wide + 0.5).map((x) => x.outerHTML)"""
      if size == 'phone'
      else '() => []',
      wide,
    )
    assert found == []
    assert page.evaluate('document.documentElement.scrollWidth') == wide
    small = page.evaluate(
      """[...document.querySelectorAll('button, select, textarea, summary')]
        .filter((x) => x.checkVisibility()
          && x.getBoundingClientRect().height < 24).map((x) => x.id)"""
    )
    assert small == []


@pytest.mark.few(2)
@pytest.mark.parametrize('scheme', ['light', 'dark'])
@pytest.mark.parametrize('size', list(browsing.SIZES))
def test_page_is_accessible(browser, server, size, scheme):
  axe = pytest.importorskip('axe_playwright_python.sync_playwright').Axe()
  with browsing.page(browser, server.url, size=size, scheme=scheme) as page:
    page.evaluate(
      "document.querySelectorAll('details').forEach((x) => x.open = true)"
    )
    assert axe.run(page).response['violations'] == []
    page.check('#compare')
    browsing.ask(page, 'Why?')
    page.wait_for_selector('.verdict')
    assert axe.run(page).response['violations'] == []


def test_accessibility_check_finds_what_is_wrong(page):
  axe = pytest.importorskip('axe_playwright_python.sync_playwright').Axe()
  page.evaluate(
    "document.querySelector('label[for=drafter]').remove();"
    "document.querySelector('#welcome p').style.color = '#bbb'"
  )
  found = {rule['id'] for rule in axe.run(page).response['violations']}
  assert {'select-name', 'color-contrast'} <= found


def test_keyboard_alone_is_enough(page):
  """Everything that can be done is reached by Tab, and shows where it is."""
  reached, rings = [], []
  for _ in range(40):
    page.keyboard.press('Tab')
    reached.append(page.evaluate('document.activeElement.id'))
    rings.append(
      page.evaluate(
        """(() => { const at = document.activeElement;
          const of = at.id == 'prompt' ? at.form : at;
          const style = getComputedStyle(of);
          return at == document.body || style.outlineStyle != 'none'
            || of.matches(':focus-within') && at.id == 'prompt'; })()"""
      )
    )
  wanted = (
    'model log prompt compare clear send drafter temperature key coloured'
  )
  assert set(wanted.split()) <= set(reached)
  assert all(rings)
