# SPDX-License-Identifier: MIT
"""How long a target takes to load, beside how long its files take to read.

  disk   every byte of the files, into one buffer
  load   header, conversion and placing of every array (`targets.reading`)

Both begin with nothing of the files in memory, as far as the system follows
that advice; a file that is being written to disk stays.
"""

import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from jspec import opening
from jspec.targets import reading

_BUFFER_BYTES = 1 << 24


def run(
  spec: str,
  *,
  mesh: Mesh | None = None,
  repeats: int = 3,
  is_warm: bool = False,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Measures both in turns.

  Args:
    spec: the target, as of `loading.load_target`, options included.
    mesh: devices it is shared out over; None: the first one.
    repeats: of both; the median counts.
    is_warm: let the system keep what it has of the files.
    on_progress: called with (repeats done, repeats in all).

  Returns:
    For JSON; seconds, bytes and their ratio.

  Raises:
    errors.UserError: as `opening.open_target`.
  """
  found = opening.open_target(spec)
  is_split = jax.default_backend() == 'cpu'
  seconds = {'disk': [], 'load': []}
  for done in range(repeats):
    if not is_warm:
      _forget(found.files)
    began = time.perf_counter()
    num_bytes = _read(found.files)
    seconds['disk'].append(time.perf_counter() - began)
    if not is_warm:
      _forget(found.files)
    began = time.perf_counter()
    target = reading.read(
      found.reader(), **found.forms(), mesh=mesh, is_split=is_split
    )
    jax.block_until_ready(target)
    seconds['load'].append(time.perf_counter() - began)
    placed = sum(x.nbytes for x in jax.tree.leaves(nnx.state(target)))
    del target
    if on_progress is not None:
      on_progress(done + 1, repeats)
  disk, load = (statistics.median(seconds[key]) for key in ('disk', 'load'))
  return {
    'target': ','.join(filter(None, (found.name, found.options))),
    'devices': 1 if mesh is None else mesh.size,
    'is_warm': is_warm,
    'file_bytes': num_bytes,
    'array_bytes': placed,
    'disk_s': disk,
    'load_s': load,
    'ratio': load / disk,
    'all_s': seconds,
  }


def line(result: dict[str, Any]) -> str:
  """For a person."""
  gigabytes = result['file_bytes'] / 1e9
  return (
    f'{result["target"]}, {result["devices"]} devices,'
    f' {"warm" if result["is_warm"] else "cold"}: {gigabytes:.2f} GB in'
    f' {result["disk_s"]:.2f} s from disk'
    f' ({gigabytes / result["disk_s"]:.2f} GB/s), {result["load_s"]:.2f} s as a'
    f' target: {result["ratio"]:.2f} times'
  )


def _forget(files: tuple[pathlib.Path, ...]) -> None:
  """Asks the system to drop what it has of files."""
  for file in files:
    with file.open('rb') as stream:
      os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(files: tuple[pathlib.Path, ...]) -> int:
  """Reads files; returns their bytes."""
  buffer, total = bytearray(_BUFFER_BYTES), 0
  for file in files:
    with file.open('rb', buffering=0) as stream:
      while count := stream.readinto(buffer):
        total += count
  return total
