# SPDX-License-Identifier: MIT
"""The thread that owns the engine, without HTTP."""

import asyncio
import threading

import pytest

from jspec import errors
from jspec.decode import sampling
from jspec.serve import asks
from jspec.server import driver as driver_lib
from tests.server import fake, running


def ask(**params):
  return asks.Ask(
    params=sampling.SamplingParams(stop_ids=(fake.END,), **params)
  )


def driven(work, engine=None, max_open=8, make=None):
  """Runs `work(driver)` in an event loop over an engine."""
  engine = engine or fake.Engine()
  driver = driver_lib.Driver(make or (lambda: engine), max_open=max_open)

  async def life():
    driver.start()
    try:
      if make is None:
        await driver.ready()
      return await work(driver)
    finally:
      engine.gate.set()
      assert driver.stop()

  return running.run(life())


async def tokens(stream):
  found = {}
  while batch := await stream.read():
    for index, event in batch:
      found.setdefault(index, []).extend(event.tokens)
  return found


def test_answers_of_a_request_come_through_one_stream():
  prompts = [[1, 2], [3]]

  async def work(driver):
    stream = driver.open('a', prompts, [ask(), ask(seed=1)])
    await stream.accepted()
    found = await tokens(stream)
    assert driver.num_open == 0
    return found

  found = driven(work)
  assert found == {
    i: fake.chatty(prompt, ask()) for i, prompt in enumerate(prompts)
  }


def test_step_wakes_the_loop_once():
  async def work(driver):
    calls = []
    post = driver._loop.call_soon_threadsafe

    class Loop:
      def call_soon_threadsafe(self, function, *of):
        calls.append(function.__name__)
        return post(function, *of)

    driver._loop = Loop()
    engine = driver.engine
    engine.gate.clear()
    streams = [driver.open(str(i), [[i]], [ask()]) for i in range(4)]
    await asyncio.sleep(0.05)
    before = engine.num_steps
    engine.gate.set()
    await asyncio.gather(*(tokens(stream) for stream in streams))
    steps = engine.num_steps - before
    assert calls.count('_deliver') <= steps
    assert calls.count('_acknowledge') == 4

  driven(work)


def test_thread_sleeps_while_nobody_wants_anything():
  class Counting(fake.Engine):
    num_looks = 0

    @property
    def has_work(self):
      self.num_looks += 1
      return fake.Engine.has_work.fget(self)

  engine = Counting()

  async def work(driver):
    await tokens(driver.open('a', [[1]], [ask()]))
    await asyncio.sleep(0.05)
    before = engine.num_looks
    await asyncio.sleep(0.2)
    assert engine.num_looks == before

  driven(work, engine)


def test_full_queue_refuses_and_lets_in_again():
  engine = fake.Engine()

  async def work(driver):
    engine.gate.clear()
    first = driver.open('a', [[1]] * 3, [ask()] * 3)
    with pytest.raises(driver_lib.Busy):
      driver.open('b', [[1]] * 2, [ask()] * 2)
    with pytest.raises(errors.UserError):  # There is never place for so many.
      driver.open('c', [[1]] * 5, [ask()] * 5)
    assert driver.num_refused == 1
    engine.gate.set()
    await tokens(first)
    assert await tokens(driver.open('b', [[1]] * 2, [ask()] * 2))

  driven(work, engine, max_open=4)


def test_refused_answer_takes_its_whole_request_along():
  async def work(driver):
    stream = driver.open('a', [[1], [9999]], [ask(), ask()])
    with pytest.raises(errors.UserError, match='vocabulary'):
      await stream.accepted()
    with pytest.raises(errors.UserError):
      await stream.read()
    assert driver.num_open == 0
    assert await driver.call(lambda engine: engine.has_work) is False

  driven(work)


def test_defect_while_submitting_does_not_end_the_engine():
  class Broken(fake.Engine):
    def submit(self, prompt, ask, *, request_id):
      super().submit(prompt, ask, request_id=request_id)
      if request_id.startswith('bad'):
        raise RuntimeError('a defect')

  async def work(driver):
    with pytest.raises(RuntimeError):
      await driver.open('bad', [[1]], [ask()]).accepted()
    assert await tokens(driver.open('good', [[1]], [ask()]))

  driven(work, Broken())


def test_closed_stream_frees_its_rows():
  # Slow, so that it has not ended by itself.
  engine = fake.Engine(lambda prompt, ask: [97] * 400, pause_s=0.05)

  async def work(driver):
    stream = driver.open('a', [[1]] * 2, [ask(max_tokens=400)] * 2)
    await stream.read()
    stream.close()
    assert driver.num_open == 0
    await driver.call(lambda engine: None)
    assert not engine.has_work
    assert driver.num_ended['abort'] == 2

  driven(work, engine)


def test_broken_engine_fails_every_stream_and_those_that_follow():
  engine = fake.Engine()

  async def work(driver):
    engine.gate.clear()
    streams = [driver.open(str(i), [[i]], [ask()]) for i in range(3)]
    engine.broken = RuntimeError('the device is gone')
    engine.gate.set()
    for stream in streams:
      with pytest.raises(driver_lib.Unavailable):
        await tokens(stream)
    assert driver.failure is engine.broken and not driver.is_ready
    with pytest.raises(driver_lib.Unavailable):
      driver.open('b', [[1]], [ask()])
    with pytest.raises(driver_lib.Unavailable):
      await driver.call(lambda engine: None)

  driven(work, engine)


def test_engine_that_starts_takes_no_requests_yet():
  may_start = threading.Event()
  engine = fake.Engine()

  def make():
    may_start.wait(10)
    return engine

  async def work(driver):
    with pytest.raises(driver_lib.Unavailable, match='starts'):
      driver.open('a', [[1]], [ask()])
    may_start.set()
    await driver.ready()
    assert await tokens(driver.open('a', [[1]], [ask()]))

  driven(work, engine, make=make)


def test_engine_that_cannot_be_made_says_why():
  def make():
    raise errors.UserError('too little memory')

  async def work(driver):
    with pytest.raises(errors.UserError, match='too little memory'):
      await driver.ready()
    assert isinstance(driver.failure, errors.UserError)

  driven(work, make=make)


@pytest.mark.parametrize('grace_s', [0.05, 10])
def test_drain_lets_finish_what_can(grace_s):
  engine = fake.Engine(lambda prompt, ask: [97] * 300, pause_s=0.01)
  is_short = grace_s < 1

  async def work(driver):
    stream = driver.open('a', [[1]], [ask(max_tokens=300)])
    await stream.accepted()
    reading = asyncio.ensure_future(tokens(stream))
    await driver.drain(grace_s)
    with pytest.raises(driver_lib.Unavailable, match='stops'):
      driver.open('b', [[1]], [ask()])
    if is_short:
      with pytest.raises(driver_lib.Unavailable, match='stops'):
        await reading
    else:
      assert len((await reading)[0]) == 300
    assert driver.num_open == 0

  driven(work, engine)
