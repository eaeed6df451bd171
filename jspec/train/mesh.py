# SPDX-License-Identifier: MIT
"""Data parallelism: rows of a batch over all devices, the rest everywhere."""

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jspec import errors
from jspec.typing import PyTree

AXIS = 'data'


def data_mesh(num_rows: int) -> Mesh:
  """A mesh of all devices; the rows of a batch must share out evenly."""
  devices = np.array(jax.devices())
  if num_rows % devices.size:
    raise errors.UserError(
      f'data.num_rows is {num_rows} but there are {devices.size} devices: make '
      'it a multiple'
    )
  return Mesh(devices, (AXIS,), axis_types=(AxisType.Auto,))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
  """Puts every array of the tree on every device."""
  return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def shard_rows(batch: PyTree, mesh: Mesh) -> PyTree:
  """Splits the leading axis of every array over the devices."""
  return jax.device_put(batch, NamedSharding(mesh, PartitionSpec(AXIS)))
