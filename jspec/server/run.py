# SPDX-License-Identifier: MIT
"""`run`: the server as a process, from its first second to its last.

  start     /health says ok, /ready does not: the engine compiles
  ready     requests are taken
  SIGTERM   new requests get 503; what was accepted goes on for `grace_s`; then
            every stream that is still open is told so, and the process ends

  SIGHUP    drafters are loaded again, where they may be swapped (`swaps`)

A second SIGTERM does not wait. If the engine cannot be made, the process ends
with the reason; if it breaks later, /health says so and every request gets 503.
"""

import asyncio
import os
import signal
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from jspec.server import app as app_lib
from jspec.server import logs
from jspec.server import served as served_lib

# For responses that were ended to leave.
_LAST_WORDS_S = 5


class Server(uvicorn.Server):
  """uvicorn, which waits for answers before it closes its doors."""

  def __init__(self, config: uvicorn.Config, served: served_lib.Served):
    super().__init__(config)
    self._served = served
    self._loop = self._ending = self._watching = self._reading = None

  async def startup(self, sockets: list | None = None) -> None:
    """Opens the port, and watches the engine start."""
    self._loop = asyncio.get_running_loop()
    await super().startup(sockets=sockets)
    self._watching = asyncio.ensure_future(self._watch())
    if self._served.swaps is not None and hasattr(signal, 'SIGHUP'):
      self._loop.add_signal_handler(signal.SIGHUP, self._read_again)

  def handle_exit(self, sig: int, frame: FrameType | None) -> None:
    """Hears a signal; may be called at any point of the program."""
    del frame
    if self._loop is None:  # Nothing was begun.
      self.should_exit = True
      return
    name = signal.Signals(sig).name
    self._loop.call_soon_threadsafe(self._heard, name)

  def _heard(self, name):
    logs.say('signal', name=name, open=self._served.driver.num_open)
    if self._ending is None:
      self._ending = asyncio.ensure_future(self._end())
    else:
      self._served.driver.fail_open()
      self.should_exit = True

  def _read_again(self):
    logs.say('signal', name='SIGHUP', open=self._served.driver.num_open)
    self._reading = asyncio.ensure_future(
      self._served.swaps.again(self._served)
    )

  async def _end(self):
    await self._served.driver.drain(self._served.limits.grace_s)
    self.should_exit = True

  async def _watch(self):
    """Ends the process if there will never be an engine."""
    driver = self._served.driver
    try:
      await driver.ready()
      logs.say('ready')
    except Exception:
      self.should_exit = True


def config(app: FastAPI, *, host: str, port: int) -> uvicorn.Config:
  """How uvicorn serves the application."""
  return uvicorn.Config(
    app,
    host=host,
    port=port,
    log_config=None,
    access_log=False,
    server_header=False,
    ws='none',
    timeout_graceful_shutdown=_LAST_WORDS_S,
  )


def run(served: served_lib.Served, *, host: str, port: int) -> None:
  """Serves until a signal comes.

  Args:
    served: what is served.
    host: address to listen on.
    port: 0 takes a free one, which the log tells.

  An engine that does not come back when the server ends takes the process with
  it.

  Raises:
    Exception: what kept the engine from starting.
  """
  app = app_lib.create(served)
  server = Server(config(app, host=host, port=port), served)
  server.run()
  if served.spans is not None:
    served.spans.close()
  driver = served.driver
  if driver.failure is not None and driver.engine is None:
    raise driver.failure
  if not driver.stop(0):
    # The thread is inside a compiler or a device, which Python cannot end.
    sys.stderr.flush()
    os._exit(0)
