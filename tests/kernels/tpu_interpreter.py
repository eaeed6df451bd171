# SPDX-License-Identifier: MIT
"""Runs Pallas TPU kernels on a CPU and says what they did wrong.

The interpreter simulates memories, copies and semaphores. Copies happen as late
as they may (when something waits for them), memory starts as NaN, reads out of
bounds raise, and accesses that nothing orders are found. It counts the bytes of
the kernel's own copies too; blocks that the grid pipelines are not copies here.
"""

import contextlib
import dataclasses
from unittest import mock

from jax._src.pallas.mosaic.interpret import interpret_pallas_call
from jax.experimental.pallas import tpu as pltpu


@dataclasses.dataclass
class Record:
  """What happened while kernels ran; `bytes_copied` by their own copies."""

  bytes_copied: int = 0
  num_copies: int = 0


@contextlib.contextmanager
def running(**settings):
  """Kernels traced and run inside are interpreted.

  Results must be waited for inside. Yields a `Record`.

  Raises:
    RuntimeError: two accesses of one buffer are not ordered.
  """
  params = pltpu.InterpretParams(
    **dict(
      detect_races=True,
      out_of_bounds_reads='raise',
      uninitialized_memory='nan',
      # Copies draw a clock each; two with the same one seem to be in order.
      vector_clock_size=64,
    )
    | settings
  )
  record, detectors = Record(), []
  make = interpret_pallas_call.RaceDetectionState
  read = interpret_pallas_call.DMA.execute_read

  def detector(**named):
    detectors.append(make(**named))
    return detectors[-1]

  def execute_read(self):
    is_new = self.state == interpret_pallas_call.DmaState.STARTED
    read(self)
    if is_new:
      record.num_copies += 1
      record.bytes_copied += self.data_size

  with contextlib.ExitStack() as stack:
    patch = mock.patch.object
    stack.enter_context(
      patch(interpret_pallas_call, 'RaceDetectionState', detector)
    )
    stack.enter_context(
      patch(interpret_pallas_call.DMA, 'execute_read', execute_read)
    )
    stack.enter_context(pltpu.force_tpu_interpret_mode(params))
    # The state is global: an exception would leave it to the next kernel.
    stack.callback(pltpu.reset_tpu_interpret_mode_state)
    yield record
    if any(one.races_found for one in detectors):
      raise RuntimeError('the kernel races')
