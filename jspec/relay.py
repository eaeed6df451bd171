# SPDX-License-Identifier: MIT
"""A way to JAX's coordinator that does not tell when the coordinator is gone.

JAX ends a process, with pages of log, as soon as its connection to the
coordinator in process 0 closes. Who watches process 0 by other means
(`jspec/lifeline.py`) has no time for a word. So JAX connects to a program
beside its process, which passes on what both ends say; where the coordinator
is gone, it is silent, and JAX waits for as long as it waits for a heartbeat:

  JAX, process I  --  relay, same host  --  coordinator, process 0

This file is that program as well: a thread would need the lock of the
interpreter, which JAX may hold while it waits for an answer. It knows nothing
of JAX, and ends with the process that started it, however that ends.
"""

import contextlib
import signal
import socket
import subprocess
import sys
import threading

_BYTES = 1 << 16


def start(host: str, port: int) -> str:
  """Starts a relay; it lasts as long as this process.

  Args:
    host: where the coordinator listens.
    port: of it.

  Returns:
    HOST:PORT of this host to connect to instead.
  """
  program = subprocess.Popen(
    [sys.executable, '-I', '-S', __file__, host, str(port)],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  )
  _started.append(program)  # Its standard input stays open.
  where = program.stdout.readline().strip()
  if not where:
    raise RuntimeError(f'the relay to {host}:{port} did not start')
  return where


_started: list[subprocess.Popen] = []


def _main(host, port):
  # Whoever ends all processes of a job at once means the one that has started
  # this, which may have to save first.
  for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
  listener = socket.create_server(('127.0.0.1', 0))
  print(f'127.0.0.1:{listener.getsockname()[1]}', flush=True)
  _run(_serve, listener, (host, int(port)))
  sys.stdin.read()


def _serve(listener, there):
  while True:
    ours, _ = listener.accept()
    _run(_relay, ours, there)


def _relay(ours, there):
  theirs = socket.socket()
  with contextlib.suppress(OSError):
    theirs = socket.create_connection(there)
    for one in (ours, theirs):
      one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # This ends, and says nothing, where the coordinator is gone.
    _run(_pass_on, theirs, ours)
  _pass_on(ours, theirs)
  # It is closed here: there, nobody is to wait for more.
  with contextlib.suppress(OSError):
    theirs.shutdown(socket.SHUT_RDWR)


def _pass_on(source, target):
  """Until the source closes; what the target does not take is dropped."""
  with contextlib.suppress(OSError):
    while data := source.recv(_BYTES):
      with contextlib.suppress(OSError):
        target.sendall(data)


def _run(function, *args):
  threading.Thread(target=function, args=args, daemon=True).start()


if __name__ == '__main__':
  _main(*sys.argv[1:])
