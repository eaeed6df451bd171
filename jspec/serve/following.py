# SPDX-License-Identifier: MIT
"""The follower's side: it makes the calls that a leader tells it of.

It has no scheduler and no requests. The models, the state and the programs are
those of the leader, and so is the order of the calls; what comes out beside the
state is dropped, since the leader has it as well.
"""

import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jax.sharding import Mesh

from jspec import errors
from jspec.serve import followers, frames, start_up
from jspec.serve import settings as settings_lib


class Follower:
  """The connection to the leader."""

  def __init__(self, connection: socket.socket):
    followers.prepare(connection)
    connection.settimeout(None)
    self._connection = connection

  def agree(self, facts: Mapping[str, str]) -> None:
    """Says what this process would run.

    Raises:
      UserError: the leader would run something else, or is gone.
    """
    self._connection.sendall(frames.encode([followers.FACTS, dict(facts)]))
    kind, text = self._hear()[0]
    if kind != followers.AGREED:
      raise errors.UserError(f'the leader refuses this process: {text}')

  def ready(self) -> None:
    """Says that the programs are compiled."""
    self._connection.sendall(frames.encode([followers.READY, '']))

  def receive(self) -> tuple[list[Any], Any] | None:
    """The key of the next call and what the leader says; None at the end.

    Raises:
      UserError: the leader is gone without a word.
    """
    head, said = self._hear()
    return None if head == [followers.END] else (head, said)

  @contextlib.contextmanager
  def telling(self) -> Iterator[None]:
    """Tells the leader what is raised inside."""
    try:
      yield
    except BaseException as error:
      text = ' '.join(f'{type(error).__name__}: {error}'.split())[:1000]
      with contextlib.suppress(OSError):
        self._connection.sendall(frames.encode([followers.FAILED, text]))
      raise
    finally:
      self._connection.close()

  def _hear(self):
    try:
      return frames.receive(self._connection)
    except (OSError, frames.Garbled) as error:
      raise errors.UserError(
        f'the leader is gone ({error}): start all processes again; its own log'
        ' says more'
      ) from error


def follow(
  target,
  drafter,
  settings: settings_lib.Settings | None,
  mesh: Mesh,
  leader: Follower,
  *,
  has_compiler: bool = False,
  on_progress: Callable[[int, int, str], None] | None = None,
) -> None:
  """Does what `engine.Engine` does elsewhere, until that one is closed.

  Args:
    target: as the leader's `Engine`.
    drafter: likewise.
    settings: likewise.
    mesh: likewise.
    leader: of `meeting.meet`.
    has_compiler: whether the leader's engine has a compiler of grammars.
    on_progress: as `Engine`; there is nothing to measure.

  Raises:
    UserError: as `Engine`, or what the leader runs is something else, or it
      is gone.
  """
  with leader.telling():
    parts = start_up.parts(target, drafter, settings)
    device, _ = start_up.prepare(
      target,
      parts.drafter,
      parts.sizes,
      is_split=has_compiler or parts.host is not None,
      mesh=mesh,
      link=leader,
      on_progress=on_progress,
    )
    device.follow(leader.receive)
