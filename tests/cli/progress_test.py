# SPDX-License-Identifier: MIT
"""The wait line: its text, and silence where nothing is waited for."""

import io
import time

import pytest

from jspec.cli import progress


class Terminal(io.StringIO):
  """A stderr that says it is a terminal."""

  def isatty(self):
    return True


def test_line_shows_what_is_known():
  wait = progress.Wait('decoding', unit='tokens')
  assert wait.line(3.2) == 'decoding  3 s'
  wait.update(5)
  assert wait.line(3.2) == 'decoding  5 tokens  3 s'
  wait.update(5, 20)
  assert wait.line(3.2) == 'decoding  5/20 tokens  3 s'


def test_short_wait_shows_nothing(monkeypatch):
  stream = Terminal()
  monkeypatch.setattr('sys.stderr', stream)
  monkeypatch.setattr(progress, '_REDRAW_S', 0.01)
  with progress.Wait('reading'):
    time.sleep(0.05)
  assert stream.getvalue() == ''


def test_long_wait_is_drawn_and_wiped_on_a_terminal(monkeypatch):
  stream = Terminal()
  monkeypatch.setattr('sys.stderr', stream)
  monkeypatch.setattr(progress, '_REDRAW_S', 0.01)
  monkeypatch.setattr(progress, '_PATIENCE_S', 0.0)
  with progress.Wait('reading'):
    time.sleep(0.1)
  assert 'reading  0 s' in stream.getvalue()
  assert stream.getvalue().endswith('\r\033[K')
  assert '\n' not in stream.getvalue()


def test_long_wait_is_a_line_now_and_then_elsewhere(monkeypatch):
  stream = io.StringIO()
  monkeypatch.setattr('sys.stderr', stream)
  monkeypatch.setattr(progress, '_LOG_S', 0.01)
  with progress.Wait('reading'):
    time.sleep(0.1)
  assert 'reading  0 s\n' in stream.getvalue()
  assert '\033' not in stream.getvalue()


def test_wait_ends_when_the_work_fails():
  wait = progress.Wait('reading')
  with pytest.raises(KeyError), wait:
    raise KeyError
  assert not wait._thread.is_alive()
