# SPDX-License-Identifier: MIT
"""The folder of a run: whose it is, and whether it may go on.

`config.json` holds the config and what the run reads (target, documents). The
same content resumes; other content, or a folder with something else in it, is
refused, so nothing is overwritten and nothing trains without being saved.
"""

import dataclasses
import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

from jspec import config as config_lib
from jspec import errors
from jspec.data import examples
from jspec.train import mesh, settings

_CONFIG = 'config.json'
# How long and how loud a run is, who shares the work and what is looked at does
# not change what it computes.
_MAY_CHANGE = (
  *(
    f'config.mesh.{field.name}' for field in dataclasses.fields(mesh.MeshConfig)
  ),
  'config.remat',
  'config.time_limit_s',
  'config.print_every',
  'config.tensorboard',
  'config.data.max_retries',
  'config.data.starving_s',
  'config.data.store',
  'config.data.store_taps',
  'config.eval.prompts',
  'config.eval.num_prompts',
  'config.eval.max_tokens',
  'config.profile.start',
  'config.profile.num_steps',
)


def check(
  folder: pathlib.Path,
  config: settings.TrainConfig,
  loaded: Any,
  documents: Sequence[examples.Document],
) -> dict[str, Any]:
  """Checks that the folder is empty or this run's; writes nothing.

  Returns:
    What `claim` is to write once the rest of the run is known to fit.

  Raises:
    UserError: the folder belongs to another run (naming the keys that differ)
      or holds other files.
  """
  ours = {
    'config': dataclasses.asdict(config),
    'inputs': {
      'target': loaded.label,
      'fingerprint': loaded.fingerprint,
      'documents': examples.fingerprint(documents),
    },
  }
  # Through JSON, as the other side went: tuples become lists.
  ours = json.loads(json.dumps(ours))
  path = folder / _CONFIG
  if folder.exists() and not folder.is_dir():
    raise errors.UserError(f'{folder} is a file: name a folder by --workdir')
  if path.exists():
    _check_same(path, ours)
  elif folder.exists() and any(
    not child.name.endswith('.partial') for child in folder.iterdir()
  ):
    raise errors.UserError(
      f'{folder} is not empty and holds no run: use another --workdir'
    )
  return ours


def claim(folder: pathlib.Path, ours: dict[str, Any]) -> None:
  """Makes the folder this run's, by what `check` returned.

  Raises:
    UserError: the folder cannot be written.
  """
  path = folder / _CONFIG
  try:
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (_CONFIG + '.partial')
    partial.write_text(json.dumps(ours, indent=2) + '\n')
    os.replace(partial, path)
  except OSError as error:
    raise errors.UserError(
      f'cannot write to {folder} ({error}): use another --workdir'
    ) from error


def _check_same(path, ours):
  try:
    theirs = config_lib.flatten(json.loads(path.read_text()))
  # Another program's file may be anything.
  except (ValueError, AttributeError) as error:
    raise errors.UserError(
      f'{path} is not the config of a run ({error}): use another --workdir'
    ) from error
  ours = config_lib.flatten(ours)
  # A run from before a key existed did what the key's default says.
  unsaid = {n: x for n, x in _key_defaults().items() if n in ours}
  theirs = {**unsaid, **theirs}
  differing = [
    f'{name} ({theirs.get(name, "absent")} there, {ours.get(name, "absent")} '
    'here)'
    for name in sorted(set(theirs) | set(ours))
    if name not in _MAY_CHANGE and theirs.get(name) != ours.get(name)
  ]
  if differing:
    raise errors.UserError(
      f'{path.parent} belongs to a run with other settings: '
      + ', '.join(differing)
      + '; use another --workdir'
    )


def _key_defaults():
  """Keys of a config that have a default, by their names in the file."""
  plain = settings.TrainConfig(
    target='',
    drafter=settings.DrafterConfig(build=''),
    data=settings.DataConfig(answers='any', mode='online'),
  )
  values = json.loads(json.dumps({'config': dataclasses.asdict(plain)}))
  required = {'target', 'drafter.build', 'data.answers', 'data.mode'}
  return {
    name: value
    for name, value in config_lib.flatten(values).items()
    if name.removeprefix('config.') not in required
  }
