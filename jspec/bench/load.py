# SPDX-License-Identifier: MIT
"""How long a target takes to load, beside how long its files take to read.

  disk   every byte of the files, into one buffer
  load   `loading.load_target`, until every array is on its device

Both begin with nothing of the files in memory, as far as the system follows
that advice; a file that is being written to disk stays. A target is loaded in a
process of its own, which has its devices and nothing of a former one. Files are
mapped, so reading, converting and placing an array is one step, not three.
"""

import multiprocessing
import os
import pathlib
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from jspec import distributed, loading, opening

_BUFFER_BYTES = 1 << 24


def run(
  spec: str,
  *,
  devices: int | None = None,
  repeats: int = 3,
  is_warm: bool = False,
  is_apart: bool = False,
  on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
  """Measures both in turns.

  Args:
    spec: the target, as of `loading.load_target`, options included.
    devices: how many it is shared out over; None: the first one has it.
    repeats: of both; the median counts.
    is_warm: let the system keep what it has of the files.
    is_apart: load in a process of its own, every time.
    on_progress: called with (repeats done, repeats in all).

  Returns:
    For JSON; seconds, bytes and their ratio.

  Raises:
    errors.UserError: as `opening.open_target`.
  """
  found = opening.open_target(spec)
  disk, loads = [], []
  for done in range(repeats):
    if not is_warm:
      _forget(found.files)
    began, busy = time.perf_counter(), time.process_time()
    num_bytes = _read(found.files)
    disk.append(
      {'s': time.perf_counter() - began, 'cpu_s': time.process_time() - busy}
    )
    files = () if is_warm else found.files
    loads.append(
      _apart(spec, devices, files) if is_apart else load(spec, devices, files)
    )
    if on_progress is not None:
      on_progress(done + 1, repeats)
  middle = {
    key: statistics.median(one[key] for one in loads) for key in loads[0]
  }
  disk_s = statistics.median(one['s'] for one in disk)
  return {
    'target': ','.join(filter(None, (found.name, found.options))),
    'devices': devices or 1,
    'is_warm': is_warm,
    'is_apart': is_apart,
    'file_bytes': num_bytes,
    'disk_s': disk_s,
    'disk_cpu_s': statistics.median(one['cpu_s'] for one in disk),
    **middle,
    'ratio': middle['load_s'] / disk_s,
    'arrays_ratio': middle['arrays_s'] / disk_s,
    'all': {'disk': disk, 'load': loads},
  }


def load(
  spec: str, devices: int | None, files: tuple[pathlib.Path, ...]
) -> dict[str, float]:
  """Loads a target; see `run`.

  Args:
    spec: as of `run`.
    devices: as of `run`.
    files: to be forgotten first.

  Returns:
    Seconds in all (`load_s`), of processors (`cpu_s`) and of each step, bytes
    of the arrays, and by how much the memory of the process grew at most,
    pages of files included.
  """
  mesh = None if devices is None else distributed.mesh(devices)
  jax.devices()
  _forget(files)
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  times = [time.perf_counter()]
  busy = time.process_time()
  target = loading.load_target(
    spec,
    progress=False,
    mesh=mesh,
    on_step=lambda _: times.append(time.perf_counter()),
  )
  jax.block_until_ready(nnx.state(target.model))
  result = {
    'load_s': time.perf_counter() - times[0],
    'cpu_s': time.process_time() - busy,
  }
  for i, step in enumerate(loading.STEPS):
    result[f'{step}_s'] = times[i + 1] - times[i]
  leaves = jax.tree.leaves(nnx.state(target.model))
  result['array_bytes'] = sum(leaf.nbytes for leaf in leaves)
  after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  # Kilobytes, of Linux.
  result['peak_bytes'] = (after - before) * 1024
  return result


def line(result: dict[str, Any]) -> str:
  """For a person."""
  gigabytes = result['file_bytes'] / 1e9
  steps = ', '.join(
    f'{step} {result[f"{step}_s"]:.2f}' for step in loading.STEPS
  )
  return (
    f'{result["target"]}, {result["devices"]} devices,'
    f' {"warm" if result["is_warm"] else "cold"}: {gigabytes:.2f} GB in'
    f' {result["disk_s"]:.2f} s from disk'
    f' ({gigabytes / result["disk_s"]:.2f} GB/s), {result["load_s"]:.2f} s as a'
    f' target ({steps}; {result["cpu_s"]:.2f} s of processors):'
    f' {result["ratio"]:.2f} times, arrays alone {result["arrays_ratio"]:.2f};'
    f' {result["array_bytes"] / 1e9:.2f} GB of arrays, memory grew by'
    f' {result["peak_bytes"] / 1e9:.2f} GB'
  )


def _apart(spec, devices, files):
  """`load` in a process of its own."""
  spawn = multiprocessing.get_context('spawn')
  with spawn.Pool(1) as pool:
    return pool.apply(load, (spec, devices, files))


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
