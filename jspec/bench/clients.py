# SPDX-License-Identifier: MIT
"""Streaming clients in a process of their own, as cheap as they can be.

They only look for where an answer begins and ends, and read its usage: what a
real client does with a stream is its own affair, and must not be counted as the
server's. What they cost all the same is told (`cpu_s`).

A program: jobs come as lines of JSON on stdin, results go to stdout.
"""

import asyncio
import json
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

_BEGIN = b'data: '
_END = b'\r\n0\r\n\r\n'  # The last chunk of a chunked body.
_USAGE = re.compile(rb'"completion_tokens": ?(\d+)')


class Failed(Exception):
  """An answer that is none."""


class Client(asyncio.Protocol):
  """One connection, one request after another.

  Attributes:
    first_s: seconds from each request to its first event.
    num_tokens: of each answer, by its usage.
    done: set when there is nothing more to send, or something went wrong.
    transport: of the connection.
  """

  def __init__(self, requests: Iterator[bytes], done: asyncio.Future):
    """Does nothing yet.

    Args:
      requests: shared by all clients; each takes the next.
      done: as above.
    """
    self.first_s, self.num_tokens = [], []
    self._requests, self.done = requests, done
    self.transport = None
    self._parts, self._tail = [], b''
    self._sent_s = self._is_first = None

  def connection_made(self, transport: asyncio.Transport) -> None:
    """Keeps it."""
    self.transport = transport

  def send(self) -> None:
    """Sends the next request, if there is one."""
    request = next(self._requests, None)
    if request is None:
      self.done.set_result(None)
      return
    self._parts, self._tail, self._is_first = [], b'', True
    self._sent_s = time.perf_counter()
    self.transport.write(request)

  def data_received(self, data: bytes) -> None:
    """Looks for the first event, and for the end."""
    self._parts.append(data)
    # What is looked for may come in pieces, which are as small as they like.
    tail = self._tail + data
    if self._is_first and _BEGIN in tail:
      self._is_first = False
      self.first_s.append(time.perf_counter() - self._sent_s)
    self._tail = tail[-len(_END) :]
    if self._tail == _END:
      self._take(b''.join(self._parts))

  def connection_lost(self, error: Exception | None) -> None:
    """Nothing more will come."""
    if not self.done.done():
      said = b''.join(self._parts)[-300:]
      self.done.set_exception(Failed(f'the connection ended: {said!r}'))

  def _take(self, answer):
    found = _USAGE.findall(answer)
    if not answer.startswith(b'HTTP/1.1 200') or not found or self._is_first:
      self.done.set_exception(Failed(f'no answer: {answer[:300]!r}'))
      return
    self.num_tokens.append(int(found[-1]))
    self.send()


def encode(path: str, body: dict[str, Any]) -> bytes:
  """A request on a connection that stays open."""
  said = json.dumps(body).encode()
  head = (
    f'POST {path} HTTP/1.1\r\nHost: localhost\r\n'
    f'Content-Type: application/json\r\nContent-Length: {len(said)}\r\n\r\n'
  )
  return head.encode() + said


async def run(
  host: str,
  port: int,
  path: str,
  bodies: list[dict[str, Any]],
  concurrency: int,
) -> dict[str, Any]:
  """Sends all requests, so many at a time, and reads them to their ends.

  Returns:
    seconds: from the first request to the last end; connections stand before.
    cpu_s: that this process worked meanwhile.
    first_s: seconds from each request to its first event.
    num_tokens: of each answer, by its usage.

  Raises:
    Failed: something else came than an answer.
  """
  loop = asyncio.get_running_loop()
  requests = iter([encode(path, body) for body in bodies])
  clients = []
  for _ in range(min(concurrency, len(bodies))):
    client = Client(requests, loop.create_future())
    await loop.create_connection(lambda client=client: client, host, port)
    clients.append(client)
  began, worked = time.perf_counter(), time.process_time()
  for client in clients:
    client.send()
  try:
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - began
  finally:
    for client in clients:
      client.transport.abort()
  return {
    'seconds': seconds,
    'cpu_s': time.process_time() - worked,
    'first_s': [s for client in clients for s in client.first_s],
    'num_tokens': [n for client in clients for n in client.num_tokens],
  }


def main() -> None:
  """Does jobs until stdin ends: the arguments of `run`, by name."""
  try:
    from uvloop import run as start
  except ImportError:
    start = asyncio.run
  for line in sys.stdin:
    try:
      found = start(run(**json.loads(line)))
    except (Failed, OSError) as error:
      found = {'error': str(error)}
    print(json.dumps(found), flush=True)


if __name__ == '__main__':
  main()
