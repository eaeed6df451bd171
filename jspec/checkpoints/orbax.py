# SPDX-License-Identifier: MIT
"""Training checkpoints: written whole or not at all, newest and best kept.

  WORKDIR/checkpoints/120/state/    all arrays, by name
  WORKDIR/checkpoints/120/meta/     names and shapes; the data iterator's state
  WORKDIR/checkpoints/120/metrics/  held-out metrics

Orbax writes beside the final name and renames, so a kill at any instant leaves
complete steps only. What stays is the newest N and, counted apart, the best N.
There are no pointers: newest and best are read from what is there, so they
cannot name what is gone.

A step that was saved in haste, without its metrics, has NaN for the metric: it
can be resumed, and is never the best.

Saving is synchronous: a drafter is small, and a failed save stops the run at
the step that made it.
"""

import dataclasses
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import jax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from orbax.checkpoint import checkpoint_managers

from jspec import errors
from jspec.checkpoints import inventory
from jspec.typing import PyTree


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
  ):
    """Opens (or makes) the folder.

    Args:
      folder: one folder a step goes in here.
      metric: the held-out metric that says which is best; higher is better.
      keep_latest: newest checkpoints kept.
      keep_best: best checkpoints kept besides.
      on_message: takes a line when something on disk is left out.
    """
    self._folder = pathlib.Path(folder).absolute()
    self._broken = self._folder.parent / inventory.BROKEN
    self._metric = metric
    self._on_message = on_message
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
    """Writes a checkpoint and deletes those no longer kept."""
    arrays = _named(state)
    saved = self._manager.save(
      step,
      args=ocp.args.Composite(
        state=ocp.args.StandardSave(arrays),
        meta=ocp.args.JsonSave({'names': _shapes(arrays), 'extra': extra}),
      ),
      metrics={**metrics, 'step': step},
      force=True,
    )
    self._manager.wait_until_finished()
    if not saved:
      raise RuntimeError(f'checkpoint {step} was refused by {self._folder}')

  def latest(self, like: PyTree) -> Restored | None:
    """Restores the newest checkpoint that can be read; None if there is none.

    Args:
      like: a state with the wanted names, shapes, dtypes and shardings.

    Raises:
      UserError: names or shapes differ, or none of those there were can be
        read.
    """
    steps = sorted(self._manager.all_steps(), reverse=True)
    for step in steps:
      try:
        return self.restore(step, like)
      except errors.UserError:
        raise
      # What a cut file raises depends on which file was cut.
      except (ValueError, OSError, KeyError, RuntimeError) as error:
        reason = str(error).strip().split('\n')[0]
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
    meta = self._manager.restore(
      step, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
    ).meta
    wanted = _named(like)
    _check_names(meta['names'], _shapes(wanted), f'checkpoint {step}')
    abstract = {
      name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
      for name, x in wanted.items()
    }
    arrays = self._manager.restore(
      step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
    ).state
    return Restored(step, _unnamed(arrays, like), meta['extra'])

  def steps(self) -> list[int]:
    """Steps that have a checkpoint, ascending."""
    return sorted(self._manager.all_steps())

  def best_step(self) -> int | None:
    """The step with the highest metric; the older one of equals."""
    steps = self.steps()
    if not steps:
      return None
    return max(steps, key=lambda step: self._rank(self.metrics(step)))

  def metrics(self, step: int) -> dict[str, float]:
    """Held-out metrics saved with a step."""
    return json.loads(_metrics_path(self._folder, step).read_text())

  def close(self) -> None:
    """Releases the manager's threads."""
    self._manager.close()

  def _open(self):
    return ocp.CheckpointManager(
      self._folder,
      options=ocp.CheckpointManagerOptions(
        preservation_policy=self._policy,
        # Only makes orbax save the metrics; the policy decides what stays.
        best_fn=self._rank,
        best_mode='max',
        enable_async_checkpointing=False,
        cleanup_tmp_directories=True,
      ),
      item_names=('state', 'meta'),
    )

  def _rank(self, metrics):
    """Orders checkpoints: the metric, then the older one; NaN comes last."""
    return inventory.rank(float(metrics[self._metric]), metrics['step'])

  def _steps_on_disk(self):
    return sorted(int(p.name) for p in self._folder.iterdir() if _is_step(p))

  def _why_unreadable(self, step):
    """Names what keeps the manager from opening at all."""
    try:
      metrics = json.loads(_metrics_path(self._folder, step).read_text())
    except (OSError, json.JSONDecodeError) as error:
      return f'its metrics cannot be read ({error})'
    return '' if self._metric in metrics else f'it has no {self._metric}'

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


def _wait_for_all(what):
  """Waits for the other processes, which see the same folder."""
  if jax.process_count() > 1:
    multihost_utils.sync_global_devices(what)


def _is_step(path: pathlib.Path) -> bool:
  return path.is_dir() and path.name.isdigit()


def _metrics_path(folder, step):
  return folder / str(step) / 'metrics' / 'metrics'


def _named(tree: PyTree) -> dict[str, Any]:
  """Flattens a tree to path -> array; typed keys become their data."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  named = {}
  for path, leaf in leaves:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    named[jax.tree_util.keystr(path, simple=True, separator='.')] = leaf
  return named


def _unnamed(arrays: dict[str, Any], like: PyTree) -> PyTree:
  leaves, treedef = jax.tree_util.tree_flatten_with_path(like)
  restored = []
  for path, leaf in leaves:
    value = arrays[jax.tree_util.keystr(path, simple=True, separator='.')]
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      value = jax.random.wrap_key_data(value, impl=jax.random.key_impl(leaf))
    restored.append(value)
  return jax.tree_util.tree_unflatten(treedef, restored)


def _shapes(arrays: dict[str, Any]) -> dict[str, str]:
  return {name: f'{x.dtype}{list(x.shape)}' for name, x in arrays.items()}


def _check_names(saved, wanted, where):
  missing = sorted(set(wanted) - set(saved))
  extra = sorted(set(saved) - set(wanted))
  if missing or extra:
    raise errors.UserError(
      f'{where} does not fit this drafter: missing {missing[:3]}, not expected '
      f'{extra[:3]}; use another --workdir'
    )
  for name, shape in wanted.items():
    if saved[name] != shape:
      raise errors.UserError(
        f'{where} does not fit this drafter: {name} is {saved[name]}, expected '
        f'{shape}; use another --workdir'
      )
