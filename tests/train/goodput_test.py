# SPDX-License-Identifier: MIT
"""Phases add up to the time there was, over restarts too."""

import datetime
import types

import jax
import pytest

from jspec import metrics as metrics_lib
from jspec.train import goodput
from tests.train import tiny


class Time:
  """A clock that the test moves."""

  def __init__(self):
    self.now = 1000.0

  def monotonic(self):
    return self.now

  def time(self):
    return self.now + 1e9


@pytest.fixture
def clock_time(monkeypatch):
  made = Time()
  monkeypatch.setattr(goodput, 'time', made)
  return made


@pytest.fixture
def clock(clock_time):
  made = goodput.Clock()
  yield made
  made.close()


def seconds(clock):
  return {k: x for k, x in clock.row()['goodput_seconds'].items() if x}


def test_time_goes_to_the_phase_it_passes_in(clock, clock_time):
  clock_time.now += 3
  clock.enter('steps')
  clock_time.now += 5
  with clock.during('evaluate'):
    clock_time.now += 1
    with clock.during('save'):
      clock_time.now += 0.5
  clock_time.now += 0.5
  assert seconds(clock) == {
    'start': 3,
    'steps': 5.5,
    'evaluate': 1,
    'save': 0.5,
  }
  assert clock.row()['goodput'] == 0.55
  assert clock.line() == (
    'train: goodput 55.0 % of 10 s, start 30.0 %, evaluate 10.0 %, save 5.0 %'
  )


def test_phase_ends_when_its_work_fails(clock, clock_time):
  with pytest.raises(KeyError), clock.during('save'):
    clock_time.now += 1
    raise KeyError
  clock_time.now += 1
  assert seconds(clock) == {'save': 1, 'start': 1}


def test_compiling_is_taken_out_of_the_phase_once(clock, clock_time):
  clock.enter('steps')
  clock_time.now += 10
  name = '/jax/core/compile/some_duration'
  # Inside one another, side by side, and of another kind.
  for event, begin, end in (
    (name, 2, 3),
    (name, 1, 5),
    (name, 6, 7),
    ('/jax/other', 0, 9),
  ):
    jax.monitoring.record_event_time_span(event, begin, end)
  clock.enter('evaluate')
  clock_time.now += 1
  assert seconds(clock) == {'compile': 5, 'steps': 5, 'evaluate': 1}


def test_real_compilation_is_heard():
  clock = goodput.Clock()
  jax.jit(lambda x: x * 3.25 + 1)(2.0)
  clock.enter('steps')
  clock.close()
  assert clock._seconds['compile'] > 0
  heard = len(clock._compiled)
  jax.jit(lambda x: x * 4.25 + 1)(2.0)
  assert len(clock._compiled) == heard == 0


@pytest.mark.parametrize('is_ready, phase', [(True, 'data'), (False, 'steps')])
def test_waiting_for_data_counts_where_the_device_idles(
  clock, clock_time, is_ready, phase
):
  def batches():
    while True:
      clock_time.now += 2
      yield 'batch'

  running = types.SimpleNamespace(is_ready=lambda: is_ready)
  clock.enter('steps')
  assert clock.take(batches(), running) == 'batch'
  clock_time.now += 1
  clock.enter('save')
  assert clock._seconds['data'] == (2 if phase == 'data' else 0)
  assert clock._seconds['steps'] == (1 if phase == 'data' else 3)
  # With nothing on its way the device idles too.
  assert clock.take(batches(), None) == 'batch'
  assert clock._seconds['data'] == (4 if phase == 'data' else 2)


def test_earlier_starts_are_added(clock_time):
  written = datetime.datetime.fromtimestamp(
    clock_time.time() - 100, datetime.UTC
  )
  rows = [
    {'step': 1, 'seconds': 9},  # In the sums below.
    {
      'step': 2,
      'seconds': 9,
      'goodput_seconds': {'steps': 40, 'compile': 8},
      'written_at': written.isoformat(),
    },
    {'step': 3, 'seconds': 5},  # Saved in haste: kept.
    {'step': 4, 'seconds': 7},
    {'step': 5, 'seconds': 8},
  ]
  clock = goodput.Clock()
  clock.resume(rows, 3)
  clock.close()
  assert seconds(clock) == {
    'steps': 45,
    'compile': 8,
    'repeat': 15,
    'down': pytest.approx(80, abs=1e-3),
  }
  # Sums go on: the next start reads what this one wrote.
  row = {'step': 4, **clock.row()}
  clock_time.now += 50
  again = goodput.Clock()
  again.resume([*rows[:3], row], 4)
  again.close()
  assert seconds(again)['down'] == pytest.approx(130, abs=1e-3)
  assert seconds(again)['steps'] == 45


def test_run_killed_before_its_first_evaluation_lost_all(clock_time):
  clock = goodput.Clock()
  clock.resume([{'step': 1, 'seconds': 5}, {'step': 2, 'seconds': 6}], 0)
  clock.close()
  assert seconds(clock) == {'repeat': 11}


@pytest.mark.slow
def test_rows_of_a_run_say_where_its_time_went(tmp_path):
  messages = []
  tiny.train(tmp_path, num_steps=4, on_message=messages.append)
  tiny.train(tmp_path, num_steps=4, on_message=messages.append)
  rows = metrics_lib.read(tmp_path / 'run' / 'metrics.jsonl')
  measured = [row for row in rows if 'goodput' in row]
  assert [row['step'] for row in measured] == [2, 4]
  for row in measured:
    parts = row['goodput_seconds']
    assert set(parts) == set(goodput.PHASES)
    assert min(parts.values()) >= 0 and parts['compile'] > 0
    assert row['goodput'] == pytest.approx(parts['steps'] / sum(parts.values()))
  first, last = (row['goodput_seconds'] for row in measured)
  assert sum(last.values()) > sum(first.values())
  # Evaluating took no step's time with it.
  assert all(row['seconds'] < 60 and row['tokens_per_s'] > 0 for row in rows)
  lines = [line for line in messages if line.startswith('train: goodput')]
  assert len(lines) == 2 and 'compile' in lines[0] and 'down' in lines[1]
