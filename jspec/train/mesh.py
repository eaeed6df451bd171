# SPDX-License-Identifier: MIT
"""Data parallelism: rows of a batch over all devices, the rest everywhere."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.typing import PyTree

AXIS = 'data'


def data_mesh(num_rows: int, num_micro_batches: int = 1) -> Mesh:
  """A mesh of all devices; the rows of a portion must share out evenly."""
  devices = np.array(jax.devices())
  if num_rows % num_micro_batches:
    raise errors.UserError(
      f'data.num_rows is {num_rows} but optim.num_micro_batches is '
      f'{num_micro_batches}: make it a multiple'
    )
  num_rows //= num_micro_batches
  if num_rows % devices.size:
    raise errors.UserError(
      f'{num_rows} rows go through at once (data.num_rows, by'
      f' optim.num_micro_batches) but there are {devices.size} devices: make'
      ' data.num_rows a multiple of both'
    )
  return Mesh(devices, (AXIS,), axis_types=(AxisType.Auto,))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Puts every array of the tree on every device."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_rows(batch: PyTree, mesh: Mesh) -> PyTree:
  """Splits the leading axis of every array over the devices."""
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(AXIS)))
