# SPDX-License-Identifier: MIT
"""Rotary position embedding, rotate-half convention, and its scalings.

  inv_freq_i = base ** (-2 i / H),   angle = position * inv_freq

Scalings change `inv_freq` (and, for YaRN, the length of the rotated vectors):
'linear' divides it by the factor; 'llama3' keeps high frequencies, divides low
ones and blends between (Llama 3.1); 'yarn' ramps between both by how many turns
a dimension makes over the original length (YaRN, arXiv 2309.00071, section 3).
'dynamic' NTK depends on the running length and is refused by the loaders.
"""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from jspec.typing import Array, Float, Int


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
  """How positions turn into rotations; lengths are in tokens."""

  base: float = 10000.0
  kind: str = 'default'
  factor: float = 1.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_max_len: int = 0
  attention_factor: float | None = None
  beta_fast: float = 32.0
  beta_slow: float = 1.0
  truncate: bool = True


def inverse_frequencies(config: RopeConfig, head_width: int) -> np.ndarray:
  """Radians per position of each of the H / 2 planes, in float32.

  Raises:
    ValueError: an unknown kind of scaling.
  """
  exponents = np.arange(0, head_width, 2, dtype=np.float64) / head_width
  plain = config.base**-exponents
  if config.kind == 'default':
    scaled = plain
  elif config.kind == 'linear':
    scaled = plain / config.factor
  elif config.kind == 'llama3':
    scaled = _llama3(config, plain)
  elif config.kind == 'yarn':
    scaled = _yarn(config, plain, head_width)
  else:
    raise ValueError(f'unknown rope scaling {config.kind!r}')
  return scaled.astype(np.float32)


def amplitude(config: RopeConfig) -> float:
  """Factor on the rotated vectors (1 except for YaRN)."""
  if config.kind != 'yarn':
    return 1.0
  if config.attention_factor is not None:
    return config.attention_factor
  return 0.1 * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0


def rotate(
  x: Float[Array, 'B T X H'],
  positions: Int[Array, 'B T'],
  config: RopeConfig,
) -> Float[Array, 'B T X H']:
  """Rotates every head of `x` by its token's position."""
  cos, sin = cos_sin(positions, config, x.shape[-1])
  return apply(x, cos, sin)


def cos_sin(positions, config, head_width):
  """Cosines and sines [B, T, 1, H / 2], computed once for all layers."""
  inv_freq = jnp.asarray(inverse_frequencies(config, head_width))
  angles = positions[..., None, None].astype(jnp.float32) * inv_freq
  scale = amplitude(config)
  return jnp.cos(angles) * scale, jnp.sin(angles) * scale


def apply(x, cos, sin):
  """Rotates the planes (i, i + H / 2) of the last axis."""
  first, second = jnp.split(x, 2, axis=-1)
  rotated = jnp.concatenate(
    [first * cos - second * sin, second * cos + first * sin], axis=-1
  )
  return rotated.astype(x.dtype)


def _llama3(config, plain):
  wavelength = 2 * math.pi / plain
  low = config.original_max_len / config.low_freq_factor
  high = config.original_max_len / config.high_freq_factor
  blend = (config.original_max_len / wavelength - config.low_freq_factor) / (
    config.high_freq_factor - config.low_freq_factor
  )
  blended = (1 - blend) * plain / config.factor + blend * plain
  scaled = np.where(wavelength > low, plain / config.factor, blended)
  return np.where(wavelength < high, plain, scaled)


def _yarn(config, plain, head_width):
  def plane_of(turns):
    span = config.original_max_len / (turns * 2 * math.pi)
    return head_width * math.log(span) / (2 * math.log(config.base))

  low, high = plane_of(config.beta_fast), plane_of(config.beta_slow)
  if config.truncate:
    low, high = math.floor(low), math.ceil(high)
  low, high = max(low, 0), min(high, head_width - 1)
  high = high + 0.001 if high == low else high
  ramp = np.clip((np.arange(head_width // 2) - low) / (high - low), 0, 1)
  return plain * (1 - ramp) + plain / config.factor * ramp
