# SPDX-License-Identifier: MIT
"""Runs Mosaic GPU kernels on a CPU: jax's interpreter, with what it lacks.

The interpreter of jax 0.10.2 simulates memories, TMA copies, barriers and WGMMA
and finds races, but knows neither a transposed right operand of WGMMA, nor a
left one in registers, nor layout casts. Those are added here for as long as a
`running` block lasts. Register layouts, swizzles and the asynchrony of WGMMA
are not simulated.
"""

import contextlib
import functools
from unittest import mock

import jax
import numpy as np
from jax._src.pallas.mosaic.interpret import utils
from jax._src.pallas.mosaic_gpu import core
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks, params
from jax._src.state import types
from jax.experimental.pallas import mosaic_gpu as plgpu

NUM_CLOCKS = 32


@contextlib.contextmanager
def running():
  """Kernels traced inside are interpreted; raises if they race.

  Raises:
    RuntimeError: two accesses of one buffer are not ordered.
  """
  # One clock for each copy, else waiting for one would order all before it.
  settings = params.InterpretGPUParams(
    detect_races=True, num_tma_threads_per_device=NUM_CLOCKS
  )
  replaced = [
    (gpu_callbacks, 'wgmma', _wgmma),
    (plgpu, 'layout_cast', lambda x, _: x),
    (core, 'layout_cast', lambda x, _: x),
  ]
  with contextlib.ExitStack() as stack:
    for module, name, function in replaced:
      stack.enter_context(mock.patch.object(module, name, function))
    stack.enter_context(params.force_gpu_interpret_mode(settings))
    # The state is global: an exception would leave it to the next kernel.
    stack.callback(gpu_callbacks.reset_gpu_interpret_mode_state)
    yield
    if gpu_callbacks.get_races().races_found:
      raise RuntimeError('the kernel races')


def _wgmma(
  *,
  token,
  device_id,
  thread_id,
  acc_allocation_key_as_array,
  acc_transforms,
  acc_dtype,
  a_allocation_key_as_array,
  a_transforms,
  b_allocation_key_as_array,
  b_transforms,
  source_info=None,
  **named,
):
  """accumulator += a @ b, read when it is issued."""
  del named
  assert not acc_transforms
  memory = gpu_callbacks._get_shared_memory()
  device, thread = int(device_id), int(thread_id)
  global_thread = memory.get_global_thread_id(device, thread)
  read = functools.partial(
    _read, memory, device, thread, global_thread, source_info
  )
  if _is_key(a_allocation_key_as_array):
    a = read(a_allocation_key_as_array, a_transforms)
  else:
    a = np.asarray(a_allocation_key_as_array)
  b = read(b_allocation_key_as_array, b_transforms)
  key = gpu_callbacks.HostAllocationKey.from_array(acc_allocation_key_as_array)
  total, _, _ = memory.get_buffer_content(
    key, (), global_thread, logging_info=None
  )
  total = total + a.astype(acc_dtype) @ b.astype(acc_dtype)
  memory.store_buffer_content(key, (), total, global_thread, logging_info=None)
  return token


def _is_key(x):
  return np.issubdtype(x.dtype, np.integer)


def _read(memory, device, thread, global_thread, source_info, key, transforms):
  key = gpu_callbacks.HostAllocationKey.from_array(np.asarray(key))
  transforms = gpu_callbacks._remove_noop_transforms(transforms)
  is_transposed = bool(transforms) and isinstance(
    transforms[-1], types.TransposeTransform
  )
  if is_transposed:
    transforms = transforms[:-1]
  where = utils.to_range(jax.tree.map(int, transforms))
  value, _, clock = memory.get_buffer_content(
    key, where, global_thread, logging_info=None
  )
  gpu_callbacks.get_races().check_read(
    device, thread, clock, key, where, source_info=source_info
  )
  return value.T if is_transposed else value
