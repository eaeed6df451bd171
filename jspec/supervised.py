# SPDX-License-Identifier: MIT
"""Background tasks that have an owner: what fails there stops the run.

  owner.start(name, function)   a thread with a name
  owner.check()                 raises the first failure, in the caller's thread
  task.wait()                   waits for one, and raises its failure

A thread that dies alone leaves a run that waits for ever or trains on without
being saved. So nothing starts a thread but through an owner, and who waits for
one looks at all (`LOOK_S`). Who starts a task also ends it.
"""

import threading
from collections.abc import Callable

# Who waits for a task looks this often whether another one has failed.
LOOK_S = 0.25


class Task:
  """A function in a thread of its own; what it raises is kept.

  Attributes:
    name: what messages call it.
    error: what it raised; None while it runs and if it raised nothing.
    was_raised: whether the owner has raised that.
  """

  def __init__(
    self,
    name: str,
    function: Callable[[], None],
    on_error: Callable[['Task'], None],
  ):
    self.name = name
    self.error: BaseException | None = None
    self.was_raised = False
    self._function = function
    self._on_error = on_error
    # A read that never returns must not keep the process alive.
    self._thread = threading.Thread(target=self._run, name=name, daemon=True)
    self._thread.start()

  @property
  def is_running(self) -> bool:
    return self._thread.is_alive()

  def join(self, timeout_s: float | None = None) -> bool:
    """Waits for the end and says whether it came; raises nothing."""
    self._thread.join(timeout_s)
    return not self.is_running

  def check(self) -> None:
    """Raises what the function raised, if it has."""
    if self.error is not None:
      self.was_raised = True
      raise self.error

  def wait(self) -> None:
    """Waits for the end; raises what the function raised."""
    self.join()
    self.check()

  def _run(self):
    try:
      self._function()
    # Whatever it is, it belongs to the owner.
    except BaseException as error:
      error.add_note(f'in the background: {self.name}')
      self.error = error
      self._on_error(self)


class Owner:
  """The background tasks of a run.

  Attributes:
    failed: the task that failed first; None if none did.
  """

  def __init__(self):
    self.failed: Task | None = None
    self._lock = threading.Lock()

  def start(self, name: str, function: Callable[[], None]) -> Task:
    """Runs the function in a thread of its own."""
    return Task(name, function, self._note)

  def check(self) -> None:
    """Raises what the first task that failed raised."""
    if self.failed is not None:
      self.failed.check()

  def _note(self, task):
    with self._lock:
      self.failed = self.failed or task
