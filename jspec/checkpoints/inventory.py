# SPDX-License-Identifier: MIT
"""What lies in the checkpoint folder of a run, without opening the run.

Nothing is written, moved or cleaned up but by `prune`, so a run may be going
on. Newest and best are read from what is there, as `orbax.Checkpoints` does.
"""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from jspec import errors

FOLDER = 'checkpoints'
# Where `orbax.Checkpoints` moves what it cannot read.
BROKEN = 'broken_checkpoints'
_PRUNED = 'pruned.partial'


@dataclasses.dataclass(frozen=True)
class Entry:
  """A checkpoint on disk.

  Attributes:
    step: its number.
    num_bytes: of all its files.
    score: the metric that says which is best; NaN where it was not measured,
      None where it cannot be read.
  """

  step: int
  num_bytes: int
  score: float | None


def read(workdir: pathlib.Path | str, metric: str) -> list[Entry]:
  """The checkpoints of a run, ascending.

  Raises:
    UserError: the folder is not one of a run.
  """
  folder = pathlib.Path(workdir) / FOLDER
  if not folder.is_dir():
    raise errors.UserError(
      f'{workdir} has no folder {FOLDER}: name the --workdir of a run'
    )
  found = []
  for path in folder.iterdir():
    if is_step(path):
      sizes = [p.stat().st_size for p in path.rglob('*') if p.is_file()]
      found.append(Entry(int(path.name), sum(sizes), _score(path, metric)))
  return sorted(found, key=lambda entry: entry.step)


def is_step(path: pathlib.Path) -> bool:
  """Whether this is a whole checkpoint: a folder, its name just a number.

  `120`, but not `0120`, `120_export` or what a save that was killed left.
  """
  return bool(re.fullmatch('0|[1-9][0-9]*', path.name)) and path.is_dir()


def rank(score: float | None, step: int) -> tuple[float, int]:
  """Orders checkpoints: the metric, then the older; unmeasured come last."""
  missing = score is None or math.isnan(score)
  return (-math.inf if missing else score, -step)


def best(entries: Sequence[Entry]) -> Entry | None:
  """The entry with the highest score."""
  ranked = sorted(entries, key=lambda entry: rank(entry.score, entry.step))
  return ranked[-1] if ranked else None


def why_unreadable(workdir: pathlib.Path | str, step: int) -> str:
  """Reads a whole checkpoint; returns what is wrong with it, or nothing."""
  path = (pathlib.Path(workdir) / FOLDER / str(step)).absolute()
  try:
    json.loads(_metrics_path(path).read_text())
    names = json.loads((path / 'meta' / 'metadata').read_text())['names']
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    wanted = {n: _abstract(text, device) for n, text in names.items()}
    with ocp.StandardCheckpointer() as reader:
      arrays = reader.restore(path / 'state', wanted)
  # What a cut file raises depends on which file was cut.
  except (ValueError, OSError, KeyError, TypeError, RuntimeError) as error:
    return str(error).strip().split('\n')[0] or type(error).__name__
  odd = [name for name, x in arrays.items() if not _is_finite(x)]
  return f'{odd[0]} is not finite' if odd else ''


def prune(
  workdir: pathlib.Path | str,
  metric: str,
  *,
  keep_latest: int,
  keep_best: int,
) -> list[int]:
  """Deletes all checkpoints but the newest and the best; returns which.

  A step leaves the folder by one rename, so a kill leaves no half of it there.
  """
  for name, value in (('latest', keep_latest), ('best', keep_best)):
    if value < 1:
      raise errors.UserError(f'--keep-{name} is {value}: keep at least 1')
  entries = read(workdir, metric)
  by_score = sorted(entries, key=lambda entry: rank(entry.score, entry.step))
  kept = {entry.step for entry in entries[-keep_latest:]}
  kept |= {entry.step for entry in by_score[-keep_best:]}
  workdir = pathlib.Path(workdir)
  aside = workdir / _PRUNED
  shutil.rmtree(aside, ignore_errors=True)
  gone = [entry.step for entry in entries if entry.step not in kept]
  for step in gone:
    aside.mkdir(exist_ok=True)
    os.rename(workdir / FOLDER / str(step), aside / str(step))
  shutil.rmtree(aside, ignore_errors=True)
  return gone


def _score(path, metric):
  try:
    return float(json.loads(_metrics_path(path).read_text())[metric])
  except (OSError, ValueError, KeyError, TypeError):
    return None


def _metrics_path(path):
  return path / 'metrics' / 'metrics'


def _abstract(text: str, device: Any) -> jax.ShapeDtypeStruct:
  """'float32[3, 4]' as an array to restore."""
  dtype, _, rest = text.partition('[')
  shape = tuple(json.loads('[' + rest))
  return jax.ShapeDtypeStruct(shape, np.dtype(dtype), sharding=device)


def _is_finite(x):
  return x.dtype.kind not in 'fV' or bool(np.all(np.isfinite(np.asarray(x))))
