# SPDX-License-Identifier: MIT
"""From a config's name to a finished run; what `jspec train` calls.

Kept tiny, so that the rest can be imported and called in a notebook.
"""

import contextlib
import pathlib
from collections.abc import Sequence

import jax

from jspec import config as config_lib
from jspec import distributed, errors, loading
from jspec.train import loop, prepare, settings, step


def run(
  spec: str,
  overrides: Sequence[str],
  workdir: pathlib.Path | str | None,
  *,
  capture_only: bool = False,
  must_resume: bool = False,
) -> None:
  """Builds the config, loads the target and trains.

  Args:
    spec: `FILE.py` or `FILE.py:ARG`.
    overrides: words `--config.KEY=VALUE`.
    workdir: folder of the run; may be None with `capture_only`.
    capture_only: fill the store of taps, then stop.
    must_resume: refuse to start where there is no checkpoint to go on from.

  Raises:
    UserError: the config, the data or the folder do not fit.
  """
  values = config_lib.load_file(spec)
  config_lib.apply_overrides(
    values, [word.removeprefix('--config.') for word in overrides]
  )
  config = config_lib.build(settings.TrainConfig, values)
  if not capture_only and workdir is None:
    raise errors.UserError('--workdir is missing: name a folder for the run')
  # A mesh takes its parts from the host; no device needs room for all of it.
  is_spread = config.data.mode == 'online' and jax.device_count() > 1
  with distributed.on_host() if is_spread else contextlib.nullcontext():
    loaded = loading.load_target(config.target)
  if not capture_only:
    loop.run(config, workdir, loaded=loaded, must_resume=must_resume)
    return
  found = prepare.documents(config, loaded)
  train, _ = prepare.split(
    found, config.eval.held_out, config.data.domains, config.data.weights
  )
  drafter = prepare.drafter(config, loaded, [found[n] for n in train])
  layers = step.captured(drafter, loaded.model.num_layers)
  prepare.store(config, loaded, found, layers)
