# SPDX-License-Identifier: MIT
"""From a config's name to a finished run; what `jspec train` calls.

Kept tiny, so that the rest can be imported and called in a notebook.
"""

import contextlib
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jspec import config as config_lib
from jspec import distributed, errors, loading, opening
from jspec.data import features
from jspec.train import agreement, compile_only, loop, prepare, settings, step
from jspec.train import capture as capture_lib

# From a drafter to its numbers.
Evaluate = Callable[[Any], dict[str, Any]]


def read(spec: str, overrides: Sequence[str]) -> settings.TrainConfig:
  """Builds a config.

  Args:
    spec: `FILE.py` or `FILE.py:ARG`.
    overrides: words `--config.KEY=VALUE`.

  Raises:
    UserError: something in it that nobody reads, or that fits no run.
  """
  values = config_lib.load_file(spec)
  config_lib.apply_overrides(
    values, [word.removeprefix('--config.') for word in overrides]
  )
  return config_lib.build(settings.TrainConfig, values)


def run(
  config: settings.TrainConfig,
  workdir: pathlib.Path | str | None,
  *,
  must_resume: bool = False,
  evaluation: Callable[[loading.LoadedTarget], Evaluate] | None = None,
  on_progress: Callable[[int, dict[str, Any]], None] | None = None,
  on_message: Callable[[str], None] = print,
) -> None:
  """Loads the target and trains.

  Args:
    config: of the run, see `read`.
    workdir: folder of the run.
    must_resume: refuse to start where there is no checkpoint to go on from.
    evaluation: from the target to what `loop.run` takes as `evaluate`.
    on_progress: called with the step and its metrics.
    on_message: takes what a person should read.

  Raises:
    UserError: the config, the data or the folder do not fit.
  """
  if workdir is None:
    raise errors.UserError('--workdir is missing: name a folder for the run')
  if '://' in str(workdir):
    raise errors.UserError(
      f'--workdir {workdir} is no folder of this machine: mount the bucket, and'
      ' name the folder it is mounted at (data.store alone may lie in object'
      ' storage)'
    )
  loaded = _loaded(config, is_decoded=evaluation is not None)
  loop.run(
    config,
    workdir,
    loaded=loaded,
    must_resume=must_resume,
    evaluate=None if evaluation is None else evaluation(loaded),
    on_progress=on_progress,
    on_message=on_message,
  )


def _loaded(config, is_decoded):
  """The target; its layers only where this process needs all of them.

  Several devices read their parts from the files, and a store has what layers
  gave. What is decoded at evaluations the first process decodes on one device.
  """
  is_online, is_spread = config.data.mode == 'online', jax.device_count() > 1
  has_layers = is_decoded and agreement.is_first()
  if not is_spread:
    is_filled = not is_online and features.exists(config.data.store)
    has_layers = has_layers or not is_filled
  # A device that has its share of the target may have no room for all of it.
  is_on_host = is_online and is_spread
  with distributed.on_host() if is_on_host else contextlib.nullcontext():
    return loading.load_target(config.target, has_layers=has_layers)


def compiled(config: settings.TrainConfig, topology: str) -> str:
  """Compiles the step of a config for a slice; says what it needs there.

  Args:
    config: of the run; its target may be the name of a published shape.
    topology: as of `slices.find`, behind `slices.prepare`.

  Raises:
    UserError: the config, the slice or its memory do not fit.
  """
  target = opening.architecture_of(config.target)
  return compile_only.table(compile_only.run(config, target, topology))


def capture(
  spec: str, overrides: Sequence[str], on_message: Callable[[str], None] = print
) -> tuple[features.Store, capture_lib.Cost]:
  """Fills the store of taps that a config names; what `jspec capture` calls.

  Args:
    spec: `FILE.py` or `FILE.py:ARG`.
    overrides: words `--config.KEY=VALUE`.
    on_message: takes what a person should read.

  Returns:
    The whole store, opened, and what was captured now.

  Raises:
    UserError: the config, the data or the store do not fit.
  """
  config = read(spec, overrides)
  if config.data.mode != 'store':
    raise errors.UserError(
      f'data.mode is {config.data.mode}: nothing is stored then; take `online`'
      ' out of the config, or give --config.data.mode=store'
    )
  loaded = _loaded(config, is_decoded=False)
  found = prepare.documents(config, loaded, on_message)
  train, _ = prepare.split(
    found, config.eval.held_out, config.data.domains, config.data.weights
  )
  drafter = prepare.drafter(config, loaded, [found[n] for n in train])
  layers = step.captured(drafter, loaded.model.num_layers)
  cost = prepare.fill(config, loaded, found, layers, on_message)
  return prepare.store(config, loaded, found, layers, on_message), cost
