# SPDX-License-Identifier: MIT
"""The forms in which a cache keeps the rows of keys and values.

  None   as the target computes them
  bf16   bfloat16
  int8   values[h] * scale, scale = max_h |x[h]| / 127   for each token and head
  fp8    the same with float8_e4m3fn and 448

What a target scores with must be what a later round reads, or drafts would
change the tokens: rows go through `as_kept` before attention, whether they come
from the cache or were made in this round. So keeping a row twice must change
nothing: `quantise` of what `dequantised` gives is the same again. Scales in
bfloat16 make it so: 8 bits of a scale times 7 (int8) or 4 (fp8) of a value fit
in float32, and the largest value is always 127 or 448 itself.
"""

import jax.numpy as jnp

from jspec import errors
from jspec.typing import Array, BFloat16, Float, Shaped

NAMES = ('bf16', 'int8', 'fp8')
DTYPES = {
  'bf16': jnp.dtype(jnp.bfloat16),
  'int8': jnp.dtype(jnp.int8),
  'fp8': jnp.dtype(jnp.float8_e4m3fn),
}
_LARGEST = {'int8': 127.0, 'fp8': 448.0}


def checked(form: object) -> str | None:
  """The form; None: as the target computes.

  Raises:
    UserError: there is no such form.
  """
  if form is not None and form not in NAMES:
    raise errors.UserError(
      f'cache={form!r}: expected one of {", ".join(NAMES)}, or leave it out'
    )
  return form


def has_scales(form: str | None) -> bool:
  """Whether values come with a scale."""
  return form in _LARGEST


def of_dtype(dtype: jnp.dtype) -> str:
  """The form with scales whose values are of a type."""
  return next(name for name in _LARGEST if DTYPES[name] == dtype)


def quantise(
  rows: Float[Array, '*batch H'], form: str
) -> tuple[Shaped[Array, '*batch H'], BFloat16[Array, '*batch']]:
  """Values and scales of rows, for a form that has scales."""
  wide = rows.astype(jnp.float32)
  limit = _LARGEST[form]
  scale = jnp.max(jnp.abs(wide), axis=-1) / limit
  scale = scale.astype(jnp.bfloat16)
  divisor = scale.astype(jnp.float32)[..., None]
  values = jnp.where(divisor > 0, wide / divisor, 0)
  if form == 'int8':
    values = jnp.round(values)
  return jnp.clip(values, -limit, limit).astype(DTYPES[form]), scale


def dequantised(
  values: Shaped[Array, '*batch H'], scale: BFloat16[Array, '*batch']
) -> Float[Array, '*batch H']:
  """Rows in float32, which holds them exactly."""
  return values.astype(jnp.float32) * scale.astype(jnp.float32)[..., None]


def as_kept(
  rows: Float[Array, '*batch H'], form: str | None
) -> Float[Array, '*batch H']:
  """What is read of rows that are kept; in float32 where they have scales."""
  if form is None:
    return rows
  if not has_scales(form):
    return rows.astype(DTYPES[form]).astype(rows.dtype)
  return dequantised(*quantise(rows, form))
