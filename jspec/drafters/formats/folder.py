# SPDX-License-Identifier: MIT
"""Checkpoint folders as dicts: tensors keep the dtype they have on disk.

A folder is written beside its place and moved there when it is complete, so it
is there whole or not at all.
"""

import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from jspec import errors
from jspec.checkpoints import safetensors as checkpoint
from jspec.checkpoints import torch_file
from jspec.drafters.formats import shapes


def read(
  path: str | pathlib.Path,
  keep: Callable[[dict[str, Any], Collection[str]], set[str]] | None = None,
) -> tuple[dict[str, Any], shapes.Tensors]:
  """Returns the config and the tensors.

  Args:
    path: of the folder.
    keep: from config and names to the names wanted; None reads all.

  Raises:
    UserError: something is absent, unreadable or truncated.
  """
  folder = pathlib.Path(path)
  file = folder / 'config.json'
  try:
    config = json.loads(file.read_text(encoding='utf-8'))
    if not isinstance(config, dict):
      raise ValueError('not an object of keys')
  except (OSError, ValueError) as error:
    raise errors.UserError(
      f'{file} is not a readable config ({error}); give a drafter folder'
    ) from error
  if _only_torch(folder):
    tensors = torch_file.read(folder / torch_file.FILE)
    wanted = keep(config, tensors) if keep else set(tensors)
    return config, {name: tensors[name] for name in wanted}
  wanted = set(checkpoint.SafetensorsFolder(folder).names())  # Checks files.
  if keep:
    wanted = keep(config, wanted)
  tensors = {}
  for weights in sorted(folder.glob('*.safetensors')):
    with safetensors.safe_open(weights, framework='numpy') as handle:
      for name in wanted & set(handle.keys()):
        tensors[name] = handle.get_tensor(name)
  return config, tensors


def _only_torch(folder):
  has_safetensors = any(folder.glob('*.safetensors*'))
  return not has_safetensors and (folder / torch_file.FILE).is_file()


def check_free(path: str | pathlib.Path) -> None:
  """Refuses a place that holds anything.

  Raises:
    UserError: it is not absent or an empty folder, or its parent is absent.
  """
  folder = pathlib.Path(path)
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise errors.UserError(
      f'{folder} is not empty; name a new folder (nothing is overwritten)'
    )
  if not folder.absolute().parent.is_dir():
    raise errors.UserError(f'{folder.absolute().parent} is no folder; make it')


def write(
  path: str | pathlib.Path,
  config: Mapping[str, Any],
  tensors: Mapping[str, np.ndarray],
) -> None:
  """Writes a folder, whole or not at all.

  Raises:
    UserError: the place is taken.
  """
  check_free(path)
  folder = pathlib.Path(path).absolute()
  part = pathlib.Path(tempfile.mkdtemp(prefix='.jspec-', dir=folder.parent))
  try:
    text = json.dumps(dict(config), indent=2, sort_keys=True) + '\n'
    (part / 'config.json').write_text(text, encoding='utf-8')
    whole = {n: np.ascontiguousarray(t) for n, t in tensors.items()}
    safetensors.numpy.save_file(
      whole, part / checkpoint.FILE, metadata={'format': 'pt'}
    )
    part.chmod(0o777 & ~_umask())
    os.replace(part, folder)
  except BaseException:
    shutil.rmtree(part, ignore_errors=True)
    raise


def _umask():
  mask = os.umask(0)
  os.umask(mask)
  return mask
