# SPDX-License-Identifier: MIT
"""A server in a thread of this process, and clients in a process beside it."""

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import uvicorn

from jspec import errors
from jspec.server import app as app_lib
from jspec.server import run as run_lib
from jspec.server import served as served_lib

HOST = '127.0.0.1'
_POLL_S = 0.005


class Server(uvicorn.Server):
  """The server as `jspec serve` runs it, but for signals."""

  def __init__(self, served: served_lib.Served):
    config = run_lib.config(app_lib.create(served), host=HOST, port=0)
    super().__init__(config)
    self._driver, self._loop = served.driver, None

  @property
  def port(self) -> int:
    """Where it listens."""
    return self.servers[0].sockets[0].getsockname()[1]

  async def startup(self, sockets: list | None = None) -> None:
    """Opens the port."""
    self._loop = asyncio.get_running_loop()
    await super().startup(sockets=sockets)

  def call(self, function: Callable[[Any], Any]) -> Any:
    """What a function of the engine returns, in the engine's thread."""
    return self.wait(self._driver.call(function))

  def loop_cpu_s(self) -> float:
    """CPU seconds of the event loop so far."""

    async def told():
      return time.thread_time()

    return self.wait(told())

  def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns, in the event loop."""
    return asyncio.run_coroutine_threadsafe(work, self._loop).result()


@contextlib.contextmanager
def serving(served: served_lib.Served) -> Iterator[Server]:
  """Runs a server while this process does something else."""
  server = Server(served)
  thread = threading.Thread(target=server.run, daemon=True)
  thread.start()
  try:
    while not server.started:
      if not thread.is_alive():
        raise errors.UserError(f'no server could be started on {HOST}')
      time.sleep(_POLL_S)
    server.wait(served.driver.ready())
    yield server
  finally:
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def clients() -> Iterator[Callable[..., dict[str, Any]]]:
  """Runs `bench.clients` as a process; yields what does a job there."""
  process = subprocess.Popen(
    [sys.executable, '-m', 'jspec.bench.clients'],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )

  def ask(**job):
    process.stdin.write(json.dumps(job) + '\n')
    process.stdin.flush()
    line = process.stdout.readline()
    found = json.loads(line) if line else {'error': 'the clients ended'}
    if 'error' in found:
      raise errors.UserError(f'the server did not answer: {found["error"]}')
    return found

  try:
    yield ask
  finally:
    process.stdin.close()
    process.wait(10)
    process.stdout.close()
