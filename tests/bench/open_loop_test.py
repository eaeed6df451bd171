# SPDX-License-Identifier: MIT
"""Latencies of an engine that is predictable, on a clock of its own."""

import types

import numpy as np
import pytest

from jspec.bench import open_loop
from jspec.decode import sampling
from jspec.serve import asks
from jspec.serve import engine as engine_lib


class Engine(engine_lib.Engine):
  """Two tokens a request a second, one request at a time."""

  def __init__(self, clock):
    self.clock, self.queue, self.number = clock, [], 0

  def submit(self, prompt, ask, **_):
    self.number += 1
    self.queue.append([self.number, ask.params.max_tokens])
    return self.number

  @property
  def has_work(self):
    return bool(self.queue)

  def step(self):
    self.clock.now += 1.0
    first = self.queue[0]
    tokens = min(2, first[1])
    first[1] -= tokens
    if not first[1]:
      self.queue.pop(0)
    return [
      asks.Event(
        request_id=first[0],
        tokens=(7,) * tokens,
        finish_reason=None if first[1] else 'length',
      )
    ]


def replay(arrival_s, lengths):
  clock = types.SimpleNamespace(now=100.0, slept=0.0)
  engine = Engine(clock)

  def sleep(seconds):
    assert seconds > 0
    clock.now += seconds
    clock.slept += seconds

  requests = [
    ((1,), asks.Ask(params=sampling.SamplingParams(max_tokens=n)))
    for n in lengths
  ]
  found = open_loop.replay(
    engine,
    np.array(arrival_s),
    requests,
    engine.step,
    clock=lambda: clock.now,
    sleep=sleep,
  )
  return found, clock


def test_times_count_from_the_arrival():
  found, clock = replay([0.0, 0.5, 10.0], [4, 3, 1])
  # 0 to 2 s the first; the second waits for it: 3 and 4 s; idle until 10 s.
  np.testing.assert_allclose(found.first_s, [1.0, 2.5, 1.0])
  np.testing.assert_allclose(found.end_s, [2.0, 3.5, 1.0])
  assert found.num_tokens.tolist() == [4, 3, 1]
  np.testing.assert_allclose(found.per_token_s(), [1 / 3, 1 / 2])
  assert found.seconds == pytest.approx(11) and clock.slept == pytest.approx(6)
  assert found.busy_s == pytest.approx(5)


def some(first_s, per_token_s, num_tokens):
  first_s, num_tokens = np.array(first_s), np.array(num_tokens)
  end_s = first_s + np.array(per_token_s) * (num_tokens - 1)
  return open_loop.Replay(first_s, end_s, num_tokens, 10.0, 5.0)


def test_goodput_counts_requests_within_both_limits():
  one = some([1.0, 3.0, 1.0, 1.0], [0.1, 0.1, 0.3, 0.0], [11, 21, 31, 1])
  found = open_loop.figures([one, one], (2.0, 0.2))
  assert found['tokens_per_second'] == pytest.approx(64 / 10)
  assert found['tokens_per_busy_second'] == pytest.approx(64 / 5)
  assert found['goodput'] == pytest.approx((11 + 1) / 10)
  assert open_loop.figures([one], (9.0, 9.0))['goodput'] == pytest.approx(6.4)
  assert found['busy_share'] == pytest.approx(0.5)


def test_percentiles_are_of_all_windows_together():
  rng = np.random.default_rng(0)
  windows = [some(rng.random(n), rng.random(n), [5] * n) for n in (3, 50, 20)]
  found = open_loop.figures(windows, (1.0, 1.0))
  everything = sorted(x for one in windows for x in one.first_s)
  for p in open_loop.PERCENTILES:
    # By hand: linear between the two nearest.
    place = (len(everything) - 1) * p / 100
    low = int(place)
    high = min(low + 1, len(everything) - 1)
    wanted = everything[low] + (place - low) * (
      everything[high] - everything[low]
    )
    assert found['first_token_s'][f'p{p}'] == pytest.approx(wanted)
  assert open_loop.percentiles(np.array([np.nan])) is None


@pytest.mark.parametrize('number', [1, 3, 4, 9, 64])
def test_windows_hold_every_request_once(number):
  windows = open_loop.windows_of(number)
  assert [i for a, b in windows for i in range(a, b)] == list(range(number))
  assert len(windows) == 1 or len(windows) % 2 == 0
  assert all(end > begin for begin, end in windows)
