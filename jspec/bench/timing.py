# SPDX-License-Identifier: MIT
"""Timing of compiled programs and of the memory they read."""

import os
import resource
import time
from collections.abc import Callable, Mapping
from concurrent import futures

import jax
import jax.numpy as jnp
import numpy as np


def times(run: Callable[[], object], repeats: int) -> list[float]:
  """Seconds of each `run`, whose result is waited for, behind a warm-up."""
  jax.block_until_ready(run())
  taken = []
  for _ in range(repeats):
    began = time.perf_counter()
    jax.block_until_ready(run())
    taken.append(time.perf_counter() - began)
  return taken


def seconds(run: Callable[[], object], repeats: int) -> float:
  """Their median."""
  return float(np.median(times(run, repeats)))


def in_turns(
  runs: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
  """Median seconds of several functions that take turns.

  What disturbs a machine for a while then disturbs all of them, so that ratios
  hold where times do not.
  """
  for run in runs.values():
    jax.block_until_ready(run())
  taken = {name: [] for name in runs}
  for _ in range(repeats):
    for name, run in runs.items():
      began = time.perf_counter()
      jax.block_until_ready(run())
      taken[name].append(time.perf_counter() - began)
  return {name: float(np.median(times)) for name, times in taken.items()}


def flop_rate(size: int = 2048, dtype=jnp.float32) -> float:
  """Floating-point operations a second of a large matmul; the best seen."""
  x = jnp.ones((size, size), dtype)
  product = jax.jit(lambda x: x @ x)
  return 2 * size**3 / min(seconds(lambda: product(x), 1) for _ in range(8))


def read_rate(arrays: list[np.ndarray], repeats: int = 5) -> float:
  """Bytes a second that all cores together read from memory; the best seen.

  Two ways of doing nothing but read: every core sums its own slice of every
  array, and the largest float32 matrix times a vector. Which one comes nearer
  to the memory differs between machines; neither may be called the floor alone.
  What is not float32 is summed as integers of its bytes: numpy sums those of
  few bits slower than memory gives them.
  """
  num_threads = os.cpu_count() or 1
  flat = [_fast_to_sum(array.reshape(-1)) for array in arrays]
  slices = [
    [
      part
      for array in flat
      for part in np.array_split(array, num_threads)[i::num_threads]
    ]
    for i in range(num_threads)
  ]

  def read(parts):
    for part in parts:
      np.add.reduce(part)

  best = np.inf
  with futures.ThreadPoolExecutor(num_threads) as pool:
    for _ in range(repeats):
      began = time.perf_counter()
      list(pool.map(read, slices))
      best = min(best, time.perf_counter() - began)
  summed = sum(array.nbytes for array in arrays) / best
  matrices = [a for a in arrays if a.ndim == 2 and a.dtype == np.float32]
  if not matrices:
    return summed
  matrix = max(matrices, key=lambda a: a.nbytes)
  vector, on_device = jnp.ones((1, matrix.shape[0])), jnp.asarray(matrix)
  product = jax.jit(lambda x, w: x @ w)
  fastest = min(
    seconds(lambda: product(vector, on_device), 1) for _ in range(4 * repeats)
  )
  return max(summed, matrix.nbytes / fastest)


def _fast_to_sum(flat):
  if flat.dtype == np.float32:
    return flat
  whole = flat.nbytes // 8 * 8 // flat.itemsize
  return flat[:whole].view(np.int64)


def peak_gb() -> float:
  """Largest resident memory of this process so far, in GB (1e9 bytes)."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
