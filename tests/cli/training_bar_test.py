# SPDX-License-Identifier: MIT
"""The line of a training run: what it says, and that it gives way."""

import io
import time

import pytest

from jspec.cli import training_bar


class Terminal(io.StringIO):
  """A stderr that says it is a terminal."""

  def isatty(self):
    return True


def terminal(monkeypatch):
  """Takes the place of stderr; not as a fixture, which pytest would undo."""
  stream = Terminal()
  monkeypatch.setattr('sys.stderr', stream)
  monkeypatch.setattr(training_bar, '_REDRAW_S', 0.01)
  return stream


def row(**changes):
  values = {'loss': 3.414, 'tokens_per_round': 1.238, 'tokens_per_s': 1950.0}
  return {**values, **changes}


def test_line_says_what_is_known(monkeypatch):
  now = [100.0]
  monkeypatch.setattr(training_bar.time, 'monotonic', lambda: now[0])
  bar = training_bar.Bar(num_steps=100)
  assert bar.line(3.2) == 'starting  3 s'
  bar.update(10, row())
  assert bar.line(9.0) == (
    '10/100 [#---------------]  1,950 tokens/s  loss 3.41  tokens/round 1.24'
  )
  for number, rate in ((11, 100.0), (12, 2050.0)):
    now[0] += 20
    bar.update(number, row(tokens_per_s=rate))
  line = bar.line(9.0)
  # The median: a step that was disturbed does not show.
  assert '1,950 tokens/s' in line
  assert 'ETA 29 min' in line  # 88 steps of 20 s.
  bar.update(100, row())
  assert '100/100 [################]' in bar.line(9.0)
  assert 'ETA 0 s' in bar.line(9.0)


def test_line_waits_for_the_first_message_and_is_wiped(monkeypatch, capsys):
  stream = terminal(monkeypatch)
  with training_bar.Bar(num_steps=4) as bar:
    time.sleep(0.05)
    assert stream.getvalue() == ''
    bar.say('data: 12 documents')
    time.sleep(0.1)
  text = stream.getvalue()
  assert 'starting  0 s' in text and text.endswith('\r\033[K')
  assert '\n' not in text
  assert capsys.readouterr().out == 'data: 12 documents\n'


def test_line_fits_the_terminal(monkeypatch):
  stream = terminal(monkeypatch)
  monkeypatch.setenv('COLUMNS', '30')
  with training_bar.Bar(num_steps=4) as bar:
    bar.update(2, row())
    bar.say('')
    time.sleep(0.1)
  drawn = stream.getvalue().split('\r\033[K')
  assert max(map(len, drawn)) == 29


def test_line_ends_when_training_fails(monkeypatch):
  terminal(monkeypatch)
  bar = training_bar.Bar(num_steps=4)
  with pytest.raises(KeyError), bar:
    bar.say('x')
    raise KeyError
  assert not bar._thread.is_alive()


@pytest.mark.parametrize(
  'seconds, text', [(5, '5 s'), (600, '10 min'), (7200, '2.0 h')]
)
def test_duration_has_the_unit_that_fits(seconds, text):
  assert training_bar._duration(seconds) == text
