# SPDX-License-Identifier: MIT
"""Weights in eight bits: small values, and a scale for every output channel.

  W[i, o]  ~  values[i, o] * scale[o],   scale[o] = max_i |W[i, o]| / largest

Symmetric, weights only: rows stay in their own type, and the scale multiplies
what the product gives, in float32.

  int8   -127 .. 127, rounded to the nearest
  fp8    float8_e4m3fn, up to 448, three bits of mantissa

Not qwix (0.1.8), whose array is the same: `qwix.quantize` takes arrays of a
device, where a target is made on the host, in pieces, from its files; and
`qwix.dot_general` with rows in floats multiplies the weight by its scales
before the product, [in, out] numbers at every step where this multiplies
[rows, out]. Its conversion of modules follows one method, with whole
parameters; a target has three, which take slices of stacked ones in a loop.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jspec.typing import Array, Float

FORMS = ('int8', 'fp8')
LARGEST = {'int8': 127.0, 'fp8': 448.0}
DTYPES = {'int8': np.int8, 'fp8': ml_dtypes.float8_e4m3fn}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QArray:
  """A weight, or several stacked on leading axes.

  Attributes:
    values: int8 or float8_e4m3fn, shaped as the weight.
    scale: float32, likewise, with 1 on the axis that a product sums over.
  """

  # Arrays of host or device, or what JAX puts in their place: shapes, specs.
  values: Any
  scale: Any

  @property
  def shape(self) -> tuple[int, ...]:
    """Of the weight."""
    return self.values.shape

  @property
  def ndim(self) -> int:
    """Axes of the weight."""
    return self.values.ndim

  @property
  def size(self) -> int:
    """Numbers of the weight."""
    return self.values.size

  @property
  def nbytes(self) -> int:
    """Of values and scales."""
    return self.values.nbytes + self.scale.nbytes

  def __getitem__(self, index) -> 'QArray':
    """Values and scale at the same place: axes of one size in both only."""
    return QArray(self.values[index], self.scale[index])


# What products take; who only moves weights about need not tell them apart.
Weight = Array | QArray


def quantise(weight: np.ndarray | Array, form: str, axis: int = -2) -> QArray:
  """Quantises a weight, where it lies: on the host, or on a device.

  Args:
    weight: [..., in, out], or as `axis` says.
    form: one of `FORMS`.
    axis: that a product sums over.
  """
  limit = LARGEST[form]
  if isinstance(weight, np.ndarray):
    # With as little new memory as can be.
    wide = weight.astype(np.float32, copy=False)
    least, most = (f(wide, axis=axis, keepdims=True) for f in (np.min, np.max))
    scale = _scale(np.maximum(most, -least), limit, np)
    values = wide / scale
    if form == 'int8':
      np.rint(values, out=values)
    np.clip(values, -limit, limit, out=values)
  else:
    wide = jnp.asarray(weight, jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=axis, keepdims=True)
    scale = _scale(largest, limit, jnp)
    values = wide / scale
    if form == 'int8':
      values = jnp.rint(values)
    values = jnp.clip(values, -limit, limit)
  return QArray(values.astype(DTYPES[form]), scale)


def _scale(largest, limit, xp):
  scale = largest / np.float32(limit)
  # A column of zeros has any scale.
  return xp.where(scale > 0, scale, np.float32(1))


def dequantised(weight: Weight, dtype=jnp.float32) -> Array:
  """The weight that a product with `weight` is one with."""
  if not isinstance(weight, QArray):
    return weight
  values, scale = (jnp.asarray(x, dtype) for x in (weight.values, weight.scale))
  return values * scale


def taken_apart(weight: Weight, dtype) -> tuple[Array, Array | None]:
  """Values in the type of the rows, and the scale; None for a plain weight."""
  if not isinstance(weight, QArray):
    return weight, None
  return weight.values.astype(dtype), weight.scale


def scaled(
  out: Float[Array, '...'], scale: Float[Array, '...'] | None
) -> Float[Array, '...']:
  """What a product with the values gave, times the scale if there is one.

  Args:
    out: of any float type, which it keeps.
    scale: as it goes with the axes of `out`.
  """
  return out if scale is None else (out * scale).astype(out.dtype)
