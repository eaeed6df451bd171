# SPDX-License-Identifier: MIT
"""Launches are counted under the name that ran them, and only honest ones."""

import types

import numpy as np
import pytest

from jspec.bench import recorder as recorder_lib
from jspec.depth import costs as costs_lib
from jspec.serve import device, metrics
from jspec.serve import engine as engine_lib


class Engine(engine_lib.Engine):
  """An engine one launch behind, on a clock of its own."""

  def __init__(self, clock, launches):
    self.clock, self.launches = clock, launches
    self.metrics = metrics.Metrics(num_drafts=2)
    self.on_launch = None
    self.number = 0
    self._sent = []

  @property
  def num_launches(self):
    return self.number

  def step(self):
    self.number += 1
    self._sent.append((self.number, self.launches.pop(0)))
    self.metrics.host_s += 0.25
    if len(self._sent) < 2:
      return []
    number, launch = self._sent.pop(0)
    self.clock.now += launch.get('seconds', 1.0)
    self.metrics.num_late += launch.get('is_late', False)
    if not launch.get('has_rounds', True):
      return ['event']
    form = launch.get('form', 'plain')
    sent = types.SimpleNamespace(
      plan=types.SimpleNamespace(
        launch=number,
        admitted=launch.get('admitted', ()),
        chunks=launch.get('chunks', ()),
      ),
      choice=types.SimpleNamespace(
        form=form, costs=costs_lib.make([2, 4], [0.1, 0.2], 0.05)
      ),
    )
    used = device.Used(
      num_rounds=3,
      by_depth=np.array([2, 0, 4]),
      by_budget=np.array([1, 2]),
      scores=np.zeros((2, 2)),
      confidence=np.zeros((2, 2)),
      parents=np.zeros((2, 2), int),
      num_verified=np.array([2, 2]),
      path=np.array([[1, 0], [1, 2]]),
    )
    self.on_launch(sent, used, launch.get('tokens', 9), None)
    return ['event']


@pytest.fixture
def record(monkeypatch):
  clock = types.SimpleNamespace(now=0.0)
  monkeypatch.setattr(recorder_lib.time, 'perf_counter', lambda: clock.now)

  def run(names, launches, **options):
    engine = Engine(clock, [*launches, {}])
    recorder = recorder_lib.Recorder(engine, **options)
    for name in [*names, 'last']:
      recorder.visit(name)
    return recorder

  return run


def test_launches_count_under_the_name_that_ran_them(record):
  names = ['plain', 'plain', 'full', 'dcut']
  launches = [
    {},
    {'seconds': 2.0, 'tokens': 8},
    {'seconds': 3.0, 'form': 'full'},
    {'seconds': 4.0, 'form': 'adaptive', 'tokens': 7},
  ]
  recorder = record(names, launches)
  # Nobody saw the very first begin.
  plain, full, dcut = (recorder.sums[n] for n in ('plain', 'full', 'dcut'))
  assert [s.num_launches for s in (plain, full, dcut)] == [1, 1, 1]
  assert [s.seconds for s in (plain, full, dcut)] == [2.0, 3.0, 4.0]
  assert [s.tokens for s in (plain, full, dcut)] == [8, 9, 7]
  assert plain.num_back == 2
  # A plain round proposes nothing, so that costs nothing.
  assert plain.predicted_s == pytest.approx(0.1 + 2 * 0.2)
  assert full.predicted_s == pytest.approx(0.15 + 2 * 0.25)
  assert dict(dcut.by_form) == {'adaptive': 3}
  assert [one.num_rows for one in recorder.rounds] == [2]  # Of `full` alone.
  found = recorder_lib.figures(dcut)
  assert found['tokens_per_second'] == pytest.approx(7 / 4)
  assert found['tokens_per_round'] == pytest.approx(7 / 6)
  assert found['share_at_depth_0'] == pytest.approx(2 / 6)
  assert found['mean_rows'] == 2
  assert found['host_share'] == pytest.approx(0.25 / 4)
  assert found['host_ms_per_launch'] == pytest.approx(250)


@pytest.mark.parametrize(
  'odd, next_counts',
  [
    ({'admitted': ('a',)}, True),
    ({'chunks': ('c',)}, True),
    ({'tokens': 0}, True),
    ({'has_rounds': False}, False),  # Its end is not waited for.
  ],
  ids=str,
)
def test_a_launch_that_did_more_does_not_count(record, odd, next_counts):
  recorder = record(['plain'] * 4, [{}, {}, odd, {'seconds': 5.0}])
  assert recorder.sums['plain'].seconds == 1.0 + 5.0 * next_counts


def test_warm_up_is_left_out_of_each_name(record):
  recorder = record(
    ['plain', 'plain', 'dcut', 'plain', 'dcut'], [{}] * 5, num_warm_up=1
  )
  assert recorder.sums['plain'].num_launches == 1
  assert recorder.sums['dcut'].num_launches == 1


def test_the_device_idles_no_longer_than_the_host_worked(record):
  recorder = record(['plain'] * 3, [{}, {'is_late': True}, {}])
  assert recorder.num_late == 1 and recorder.idle_s == pytest.approx(0.25)
  assert recorder.host_s == pytest.approx(4 * 0.25)


def test_names_on_their_way_are_those_that_did_not_come_back(record):
  recorder = record(['plain', 'dcut'], [{'has_rounds': False}, {}])
  assert recorder.on_way('last') == 1
  assert recorder.on_way('plain') == recorder.on_way('dcut') == 0
