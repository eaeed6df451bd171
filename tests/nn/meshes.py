# SPDX-License-Identifier: MIT
"""Functions on a mesh, against the same on one device."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, PartitionSpec

from jspec.nn import spread

AXES = ('fsdp', 'expert', 'sequence', 'model')


def spread_over(**sizes):
  """A spread over axes of these sizes."""
  shape = [sizes.get(axis, 1) for axis in AXES]
  devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
  mesh = Mesh(devices, AXES, axis_types=(AxisType.Auto,) * len(AXES))

  def axis(name):
    return name if name in sizes else None

  return spread.Spread(
    mesh,
    rows=tuple(a for a in ('fsdp', 'expert') if a in sizes),
    tokens=axis('sequence'),
    heads=axis('model'),
    experts=axis('expert') or axis('model'),
    weight=lambda name, shape: PartitionSpec(),
  )


def values_and_grads(function, arrays, where=None):
  """Of a sum of squares; on a mesh or not."""

  def loss(*arrays):
    if where is None:
      return jnp.sum(jnp.square(function(*arrays)))
    with spread.over(where):
      return jnp.sum(jnp.square(function(*arrays)))

  return jax.jit(jax.value_and_grad(loss, argnums=tuple(range(len(arrays)))))(
    *arrays
  )


def check(function, arrays, where, tolerance=1e-4):
  value, grads = values_and_grads(function, arrays, where)
  want, want_grads = values_and_grads(function, arrays)
  np.testing.assert_allclose(value, want, rtol=1e-5)
  for x, y in zip(grads, want_grads, strict=True):
    np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
    assert np.abs(y).max() > 1e-3


def shapes(text):
  """Of the floats of a compiled program, on a device."""
  found = re.findall(r'f32\[([\d,]*)\]', text)
  return {tuple(map(int, sizes.split(','))) for sizes in found if sizes}
