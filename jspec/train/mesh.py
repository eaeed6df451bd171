# SPDX-License-Identifier: MIT
"""The mesh of a run: a preset says over which axes the devices are laid out.

  axis       shares out                          a device then holds
  data       rows of a batch                     all weights
  fsdp       rows; weights where they are kept   a part of every matrix
  expert     rows; experts, and weights as fsdp  some experts
  sequence   tokens of a row; weights as fsdp    a part of every sequence
  model      heads, columns, vocabulary          a part of every matmul

All five axes are always there, most of them of size 1, so that one table
(`layout`) serves every preset. Devices lie in JAX's order, `model` and
`sequence` innermost: those of one process are neighbours.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jspec import errors

AXES = ('data', 'fsdp', 'expert', 'sequence', 'model')
ROWS = ('data', 'fsdp', 'expert')
# Axes of each preset; the last one that no size is given for takes the rest,
# after those of `_HALVES` took two devices.
PRESETS = {
  'dp': ('data',),
  'fsdp': ('data', 'fsdp'),
  'fsdp_tp': ('data', 'model', 'fsdp'),
  'sp': ('data', 'sequence', 'fsdp'),
  'ep': ('data', 'fsdp', 'expert'),
}
_HALVES = ('model', 'sequence')


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
  """How devices share the work; sizes of axes are found where they are None.

  Attributes:
    preset: one of `PRESETS`: 'dp' shares out rows; 'fsdp' weights and optimiser
      state too; 'fsdp_tp' matmuls besides; 'sp' the tokens of long rows; 'ep'
      the experts of a mixture.
    data: copies of everything that is kept.
    fsdp: devices that share out weights and rows.
    model: devices that share out heads and columns.
    sequence: devices that share out the tokens of a row.
    expert: devices that share out experts.
  """

  preset: str = 'dp'
  data: int | None = None
  fsdp: int | None = None
  model: int | None = None
  sequence: int | None = None
  expert: int | None = None

  def __post_init__(self):
    if self.preset not in PRESETS:
      raise errors.UserError(
        f'mesh.preset is {self.preset}: choose one of {", ".join(PRESETS)}'
      )
    for axis in AXES:
      size = getattr(self, axis)
      if size is None:
        continue
      if axis not in PRESETS[self.preset]:
        raise errors.UserError(
          f'mesh.{axis} is {size}, but preset {self.preset} has the axes'
          f' {", ".join(PRESETS[self.preset])}: leave it out'
        )
      if size < 1:
        raise errors.UserError(f'mesh.{axis} is {size}: it must be at least 1')


def sizes(config: MeshConfig, num_devices: int) -> dict[str, int]:
  """The size of every axis.

  Raises:
    UserError: the sizes given do not make the number of devices.
  """
  given = {axis: getattr(config, axis) for axis in PRESETS[config.preset]}
  found = {axis: size for axis, size in given.items() if size is not None}
  left, rest = divmod(num_devices, math.prod(found.values()))
  unset = [axis for axis, size in given.items() if size is None]
  if not rest and unset:
    *others, last = unset
    for axis in others:
      # On one device every preset is the same.
      found[axis] = math.gcd(2, left) if axis in _HALVES else 1
      left //= found[axis]
    found[last] = left
  if math.prod(found.values()) != num_devices:
    said = ', '.join(f'{a}={n}' for a, n in given.items() if n is not None)
    raise errors.UserError(
      f'mesh.preset {config.preset} with {said} does not fill {num_devices}'
      ' devices: give sizes whose product is their number, or leave one out'
    )
  return {axis: found.get(axis, 1) for axis in AXES}


def make(
  config: MeshConfig,
  data: Any,
  num_micro_batches: int = 1,
  devices: Sequence[Any] | None = None,
) -> Mesh:
  """The mesh of a run.

  Args:
    config: preset and sizes.
    data: has `num_rows` and `row_len` (`settings.DataConfig`).
    num_micro_batches: portions that the rows go through in.
    devices: those to use, also of a topology that is not there; None: all.

  Raises:
    UserError: devices, rows or tokens do not share out evenly.
  """
  devices = jax.devices() if devices is None else list(devices)
  if data.num_rows % num_micro_batches:
    raise errors.UserError(
      f'data.num_rows is {data.num_rows} but optim.num_micro_batches is '
      f'{num_micro_batches}: make it a multiple'
    )
  shape = sizes(config, len(devices))
  num_rows = data.num_rows // num_micro_batches
  shares = math.prod(shape[axis] for axis in ROWS)
  if num_rows % shares:
    raise errors.UserError(
      f'{num_rows} rows go through at once (data.num_rows, by'
      f' optim.num_micro_batches) but {shares} devices share them out'
      f' (mesh.preset {config.preset}): make data.num_rows a multiple of both'
    )
  if data.row_len % shape['sequence']:
    raise errors.UserError(
      f'data.row_len is {data.row_len} but mesh.sequence is'
      f' {shape["sequence"]}: make it a multiple'
    )
  grid = np.array(devices).reshape([shape[axis] for axis in AXES])
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def num_row_shards(mesh: Mesh) -> int:
  """Devices, or groups of them, that have rows of their own."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def share_of_rows(mesh: Mesh) -> tuple[int, int]:
  """Which share of a batch this process reads, and how many shares there are.

  Processes whose devices work on the same rows read the same share.
  """
  grid = mesh.devices.reshape(num_row_shards(mesh), -1)
  owners = [[device.process_index for device in group] for group in grid]
  return share(owners, jax.process_index())


def share(owners: Sequence[Sequence[int]], process: int) -> tuple[int, int]:
  """The same, from the processes that have the devices of each run of rows."""
  mine = [i for i, group in enumerate(owners) if process in group]
  count = len(mine)
  is_run = mine == list(range(mine[0], mine[0] + count))
  if not is_run or mine[0] % count or len(owners) % count:
    raise errors.UserError(
      'the devices of a process do not share out whole runs of rows: choose'
      ' mesh sizes so that every process has as many rows as the others'
    )
  return mine[0] // count, len(owners) // count
