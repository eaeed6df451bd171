# SPDX-License-Identifier: MIT
"""What begins behind the deadline is skipped, if it is slow, and told."""

import time

import pytest

from tests import deadline


def test_slow_tests_begin_before_the_deadline_only(monkeypatch):
  monkeypatch.delenv(deadline.NAME, raising=False)
  assert deadline.why_not(True) is None
  monkeypatch.setenv(deadline.NAME, f'{time.time() + 60}')
  assert deadline.why_not(True) is None
  monkeypatch.setenv(deadline.NAME, f'{time.time() - 1}')
  assert 'no time left' in deadline.why_not(True)
  assert deadline.why_not(False) is None


def test_a_deadline_that_is_no_time_is_an_error(monkeypatch):
  monkeypatch.setenv(deadline.NAME, 'tomorrow')
  with pytest.raises(ValueError, match='tomorrow'):
    deadline.why_not(True)


def test_the_hook_skips_before_anything_is_set_up(monkeypatch):
  from tests import conftest

  asked = []

  class Item:
    def get_closest_marker(self, name):
      asked.append(name)
      return object()

  monkeypatch.setenv(deadline.NAME, '1')
  with pytest.raises(pytest.skip.Exception, match='no time left'):
    conftest.pytest_runtest_setup(Item())
  assert asked == ['slow']
  monkeypatch.setenv(deadline.NAME, f'{time.time() + 60}')
  conftest.pytest_runtest_setup(Item())
