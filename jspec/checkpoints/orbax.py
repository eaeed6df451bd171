# SPDX-License-Identifier: MIT
"""Training checkpoints: written whole or not at all, newest and best kept.

  WORKDIR/checkpoints/120/state/    all arrays, by name
  WORKDIR/checkpoints/120/meta/     names and shapes; the data iterator's state
  WORKDIR/checkpoints/120/metrics/  held-out metrics

Orbax writes beside the final name and renames, and what goes is renamed before
it is deleted, so a kill at any instant leaves complete steps only. What stays
is the newest N and, counted apart, the best N. There are no pointers: newest
and best are read from what is there, so they cannot name what is gone.

A step that was saved in haste, without its metrics, has NaN for the metric: it
can be resumed, and is never the best.

Saving goes on in the background, one at a time. The state is copied before
`save` returns, so the next step may be given its memory. A save that fails is
raised by the owner of background tasks, or at the latest by `wait`; the
checkpoints before it stay as they are.
"""

import contextlib
import dataclasses
import functools
import json
import logging
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from jspec import errors, supervised
from jspec.checkpoints import inventory, leaves
from jspec.typing import PyTree

# Inside the folder of checkpoints: steps on their way out.
_DELETED = 'deleted.partial'
# Processes that cannot read a checkpoint say so within this time.
_AGREE_S = 60


@dataclasses.dataclass(frozen=True)
class Restored:
  """A checkpoint read back: `extra` is the JSON object saved with it."""

  step: int
  state: PyTree
  extra: dict[str, Any]


class Checkpoints:
  """The checkpoints of one run."""

  def __init__(
    self,
    folder: pathlib.Path,
    *,
    metric: str,
    keep_latest: int = 2,
    keep_best: int = 1,
    on_message: Callable[[str], None] = print,
    owner: supervised.Owner | None = None,
  ):
    """Opens (or makes) the folder.

    Args:
      folder: one folder a step goes in here.
      metric: the held-out metric that says which is best; higher is better.
      keep_latest: newest checkpoints kept.
      keep_best: best checkpoints kept besides.
      on_message: takes a line when something on disk is left out.
      owner: of the saves in the background; without one, `wait` alone raises
        what they do.
    """
    self._folder = pathlib.Path(folder).absolute()
    self._broken = self._folder.parent / inventory.BROKEN
    self._metric = metric
    self._on_message = on_message
    self._owner = owner or supervised.Owner()
    self._saving: supervised.Task | None = None
    self._has_failed = False
    self._quiet = _Quiet()
    self._policy = checkpoint_managers.AnyPreservationPolicy(
      [
        checkpoint_managers.LatestN(keep_latest),
        checkpoint_managers.BestN(
          get_metric_fn=self._rank,
          n=keep_best,
          keep_checkpoints_without_metrics=False,
        ),
      ]
    )
    if jax.process_index() == 0:
      self._folder.mkdir(parents=True, exist_ok=True)
      self._empty_deleted()
      for step in self._steps_on_disk():
        reason = self._why_unreadable(step)
        if reason:
          self._set_aside(step, reason)
    _wait_for_all('checkpoints opened')
    self._manager = self._open()

  def save(
    self,
    step: int,
    state: PyTree,
    extra: dict[str, Any],
    metrics: dict[str, float],
  ) -> None:
    """Copies the state and writes it in the background.

    What is no longer kept is deleted once it is written. Waits for the save
    before.

    Raises:
      UserError: that one failed, or this one cannot begin.
    """
    self.wait()
    named = leaves.named(state)
    arrays = {name: leaves.detached(x) for name, x in named.items()}
    meta = {'names': leaves.shapes(arrays), 'extra': extra}
    with self._explained(step, OSError):
      saved = self._manager.save(
        step,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(arrays),
          meta=ocp.args.JsonSave(meta),
        ),
        metrics={**metrics, 'step': step},
        force=True,
      )
    if not saved:
      raise RuntimeError(f'checkpoint {step} was refused by {self._folder}')
    self._saving = self._owner.start(
      f'saving of checkpoint {step}', functools.partial(self._finish, step)
    )

  def wait(self) -> None:
    """Waits for the save that is under way.

    Raises:
      UserError: it failed, for want of space for one.
    """
    if self._saving is not None:
      self._saving.wait()
      self._saving = None

  def latest(self, like: PyTree) -> Restored | None:
    """Restores the newest checkpoint that can be read; None if there is none.

    Args:
      like: a state with the wanted names, shapes, dtypes and shardings.

    Raises:
      UserError: names or shapes differ, or none of those there were can be
        read.
    """
    steps = self.steps()[::-1]
    for step in steps:
      try:
        return self.restore(step, like)
      except errors.UserError:
        raise
      # What a cut file raises depends on which file was cut.
      except (ValueError, OSError, KeyError, RuntimeError) as error:
        reason = _first_line(error)
        self._must_fail_everywhere(step, reason)
        self._manager.close()
        if jax.process_index() == 0:
          self._set_aside(step, reason)
        _wait_for_all('checkpoint set aside')
        self._manager = self._open()
    # What was set aside, now or in an earlier start, was trained for.
    if steps or any(self._broken.glob('*')):
      raise errors.UserError(
        f'no checkpoint in {self._folder} can be read (see {self._broken}): use'
        ' another --workdir, or delete both folders to start anew'
      )
    return None

  def restore(self, step: int, like: PyTree) -> Restored:
    """Restores one checkpoint; its names and shapes must be those of `like`."""
    self.wait()
    meta = self._manager.restore(
      step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
    ).meta
    wanted = leaves.named(like)
    leaves.check(meta['names'], leaves.shapes(wanted), f'checkpoint {step}')
    abstract = {
      name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
      for name, x in wanted.items()
    }
    arrays = self._manager.restore(
      step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    ).state
    return Restored(step, leaves.unnamed(arrays, like), meta['extra'])

  def steps(self) -> list[int]:
    """Steps that have a checkpoint, ascending."""
    self.wait()
    return sorted(self._manager.all_steps())

  def best_step(self) -> int | None:
    """The step with the highest metric; the older one of equals."""
    steps = self.steps()
    if not steps:
      return None
    return max(steps, key=lambda step: self._rank(self.metrics(step)))

  def metrics(self, step: int) -> dict[str, float]:
    """Held-out metrics saved with a step."""
    self.wait()
    return json.loads(_metrics_path(self._folder, step).read_text())

  def close(self) -> None:
    """Waits for the save that is under way and releases what is held.

    A failure that nobody has been told of is told, not raised: what closes may
    be ending for a reason of its own.
    """
    saving, self._saving = self._saving, None
    if saving is not None:
      saving.join()
      if saving.error is not None:
        self._has_failed = True
        if not saving.was_raised:
          self._on_message(str(saving.error))
    # Orbax raises what failed once more in every thread that asks.
    ignored = (Exception,) if self._has_failed else ()
    with contextlib.suppress(*ignored):
      self._manager.wait_until_finished()
    with contextlib.suppress(*ignored):
      self._manager.close()
    if not self._has_failed:  # What was under way then still ends.
      self._quiet.stop()

  def _open(self):
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self._policy,
        # Only makes orbax save the metrics; the policy decides what stays.
        best_fn=self._rank,
        best_mode='max',
        # A folder that cannot be made is said at once.
        async_options=ocp.AsyncOptions(
          create_directories_asynchronously=False, barrier_sync_fn=_barrier()
        ),
        cleanup_tmp_directories=True,
        todelete_subdir=_DELETED,
      ),
      item_names=('state', 'meta'),
    )

  def _finish(self, step):
    """In the background: ends when the checkpoint is there."""
    # TensorStore has other errors than the system's for a full disk.
    with self._explained(step, (OSError, ValueError, RuntimeError)):
      self._manager.wait_until_finished()
      self._empty_deleted()

  @contextlib.contextmanager
  def _explained(self, step, kinds):
    try:
      yield
    except kinds as error:
      self._has_failed = True
      raise errors.UserError(
        f'checkpoint {step} could not be written to {self._folder} '
        f'({_first_line(error)}): make room there or mend the disk; the same'
        ' command then goes on from the checkpoint before'
      ) from error

  def _empty_deleted(self):
    path = self._folder / _DELETED
    if jax.process_index() == 0 and path.exists():
      shutil.rmtree(path)

  def _rank(self, metrics):
    """Orders checkpoints: the metric, then the older one; NaN comes last."""
    return inventory.rank(float(metrics[self._metric]), metrics['step'])

  def _steps_on_disk(self):
    paths = filter(inventory.is_step, self._folder.iterdir())
    return sorted(int(path.name) for path in paths)

  def _why_unreadable(self, step):
    """Names what keeps the manager from opening at all."""
    try:
      metrics = json.loads(_metrics_path(self._folder, step).read_text())
    except (OSError, json.JSONDecodeError) as error:
      return f'its metrics cannot be read ({error})'
    return '' if self._metric in metrics else f'it has no {self._metric}'

  def _must_fail_everywhere(self, step, reason):
    """Refuses to go on where others have read what this process has not.

    Or are gone, which is why it could not: what a process raises then looks
    like a checkpoint that was cut.
    """
    try:
      ocp.multihost.get_barrier_sync_fn()(
        key=f'checkpoint {step} unreadable', timeout_ms=1000 * _AGREE_S
      )
    except RuntimeError as error:
      raise errors.UserError(
        f'checkpoint {step} in {self._folder} cannot be read by this process'
        f' alone ({reason}): see that all processes reach the same files; the'
        ' same command then goes on'
      ) from error

  def _set_aside(self, step, reason):
    """Moves a broken step away, so that the step can be saved again."""
    source = self._folder / str(step)
    aside = self._broken / str(step)
    aside.parent.mkdir(exist_ok=True)
    if aside.exists():
      shutil.rmtree(aside)
    shutil.move(source, aside)
    self._on_message(
      f'checkpoint {step} cannot be read and was moved to {aside}: {reason}'
    )


class _Quiet(logging.Filter):
  """Drops the tracebacks that orbax logs of what it raises as well.

  And those of writes that end after a save that has failed, and its loop.
  """

  def __init__(self):
    super().__init__()
    self._before = sys.unraisablehook
    sys.unraisablehook = self._hear
    logging.getLogger('absl').addFilter(self)

  def stop(self) -> None:
    logging.getLogger('absl').removeFilter(self)
    if sys.unraisablehook == self._hear:
      sys.unraisablehook = self._before

  def _hear(self, raised):
    if str(raised.exc_value) != 'Event loop is closed':
      self._before(raised)

  def filter(self, record: logging.LogRecord) -> bool:
    return not (record.exc_info and 'orbax' in record.pathname)


def _barrier():
  """How orbax waits for the other processes in the background."""
  wait = ocp.multihost.get_barrier_sync_fn()

  def sync(*, key, timeout_ms):
    # Orbax waits in a `finally` too. Where this process has failed the others
    # are not there but behind it, so its error is not told for 20 minutes.
    error = sys.exception()
    if error is not None:
      raise error
    wait(key=key, timeout_ms=timeout_ms)

  return sync


def _wait_for_all(what):
  """Waits for the other processes, which see the same folder."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(what)


def _metrics_path(folder, step):
  return folder / str(step) / 'metrics' / 'metrics'


def _first_line(error):
  return str(error).strip().split('\n')[0] or type(error).__name__
