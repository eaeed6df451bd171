# SPDX-License-Identifier: MIT
"""A headless Chromium, driven by Playwright; tests skip where there is none."""

import contextlib
import shutil

import pytest

_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'chrome')
SIZES = {'wide': (1280, 800), 'phone': (320, 640)}


@contextlib.contextmanager
def browser():
  """Starts one; it lives in this thread, and owns its event loop meanwhile."""
  api = pytest.importorskip(
    'playwright.sync_api', reason='no playwright: pip install playwright'
  )
  path = next(filter(None, map(shutil.which, _NAMES)), None)
  if path is None:
    pytest.skip('no browser: install Chromium (Debian: chromium)')
  with api.sync_playwright() as playwright:
    # As root, which CI often is, Chromium has no sandbox.
    found = playwright.chromium.launch(
      executable_path=path, args=['--no-sandbox']
    )
    yield found
    found.close()


@contextlib.contextmanager
def page(of, url, *, size='wide', scheme='light', is_ready=True, expected=None):
  """Opens the page in a session of its own.

  Whatever it does, it asks nobody but its server and has nothing to complain
  of, but for what holds the text `expected`. Requests that the server refuses,
  of which browsers complain too, are the caller's business.
  """
  wide, high = SIZES[size]
  context = of.new_context(
    viewport={'width': wide, 'height': high}, color_scheme=scheme
  )
  found = context.new_page()
  found.set_default_timeout(20_000)
  problems = []
  found.on('pageerror', lambda error: problems.append(str(error)))
  found.on(
    'console',
    lambda said: (
      said.type in ('error', 'warning')
      and 'Failed to load resource' not in said.text
      and problems.append(said.text)
    ),
  )
  found.on(
    'request',
    lambda request: (
      request.url.startswith((url, 'data:')) or problems.append(request.url)
    ),
  )
  found.goto(url + '/')
  if is_ready:
    found.wait_for_selector('#load[data-status=ready]')
  yield found
  assert [x for x in problems if not expected or expected not in x] == []
  if expected:
    assert problems, f'nothing was said of {expected}'
  context.close()


def ask(of, text):
  """Sends a message by the keyboard."""
  of.fill('#prompt', text)
  of.press('#prompt', 'Enter')


def ended(of):
  """Waits until answers have ended."""
  of.wait_for_selector('#send:visible')


def tokens(of, answer=0):
  """Texts and classes of the tokens of an answer."""
  return of.evaluate(
    """n => [...document.querySelectorAll('.text')[n].children].map(
      (token) => [token.textContent, token.className])""",
    answer,
  )
