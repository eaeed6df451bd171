# SPDX-License-Identifier: MIT
"""A server in this process, on a port of 127.0.0.1, for as long as a test."""

import asyncio
import contextlib
import threading
import time

import httpx
import openai
import uvicorn

from jspec.server import app as app_lib
from jspec.server import driver as driver_lib
from jspec.server import limits as limits_lib
from jspec.server import served as served_lib
from tests.server import fake


class Server:
  """A running server.

  Attributes:
    url: where it is.
    engine: behind it.
    served: what it serves.
  """

  def __init__(self, served, engine):
    self.served, self.engine = served, engine
    self._clients = []
    config = uvicorn.Config(
      app_lib.create(served),
      host='127.0.0.1',
      port=0,
      log_config=None,
      access_log=False,
      ws='none',
    )
    self._server = uvicorn.Server(config)
    self._thread = threading.Thread(target=self._server.run, daemon=True)

  def start(self, waits=True):
    self._thread.start()
    until(lambda: self._server.started)
    port = self._server.servers[0].sockets[0].getsockname()[1]
    self.url = f'http://127.0.0.1:{port}'
    if waits:
      until(lambda: self.served.driver.is_ready or self.served.driver.failure)

  def stop(self):
    for client in self._clients:
      client.close()
    self._server.should_exit = True
    self._thread.join(20)
    assert not self._thread.is_alive()

  def client(self, **options):
    client = openai.OpenAI(
      base_url=self.url + '/v1', api_key='none', max_retries=0, **options
    )
    self._clients.append(client)
    return client

  def post(self, path, body=None, **options):
    return httpx.post(self.url + path, json=body, timeout=30, **options)

  def get(self, path, **options):
    return httpx.get(self.url + path, timeout=30, **options)


@contextlib.contextmanager
def serving(engine=None, *, make=None, max_queue=64, waits=True, **changes):
  """Runs a server over a fake engine.

  Args:
    engine: it; None: a new one.
    make: makes the engine in the driver's thread, where that is tested.
    max_queue: answers that wait.
    waits: until the engine is ready.
    changes: of `Served`.
  """
  engine = fake.Engine() if engine is None else engine
  limits = limits_lib.Limits(max_queue=max_queue, **changes.pop('limits', {}))
  served = served_lib.Served(
    driver=driver_lib.Driver(
      make or (lambda: engine),
      max_open=engine.sizes.scheduler.max_rows + max_queue,
    ),
    **{
      'target': fake.target(),
      'names': ('fake', 'alias'),
      'vocab_size': fake.VOCAB_SIZE,
      'context_len': fake.CONTEXT_LEN,
      'drafters': {'ngram': 'ngram', 'suffix': 'suffix'},
      'policies': fake.POLICIES,
      'limits': limits,
      **changes,
    },
  )
  server = Server(served, engine)
  server.start(waits)
  try:
    yield server
  finally:
    if isinstance(engine, fake.Engine):
      engine.gate.set()  # A test that failed may have left it shut.
    server.stop()


def until(condition, seconds=20.0):
  """Waits; fails if it takes too long."""
  end = time.monotonic() + seconds
  while not condition():
    assert time.monotonic() < end, 'waited too long'
    time.sleep(0.005)


def run(coroutine):
  """Runs a coroutine in a loop of its own."""
  return asyncio.run(asyncio.wait_for(coroutine, 30))
