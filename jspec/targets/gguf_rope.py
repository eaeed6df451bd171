# SPDX-License-Identifier: MIT
"""How heads are rotated, from the metadata of a GGUF file.

The file does not carry Llama 3's scaling rule but its result, the divisors of
the frequencies (`rope_freqs.weight`); the rule is recovered from them.
"""

import numpy as np

from jspec import errors
from jspec.checkpoints import gguf
from jspec.nn import rope
from jspec.targets import gguf_fields

FREQUENCIES = 'rope_freqs.weight'


def rotary(
  fields: gguf_fields.Fields,
  file: gguf.GGUFFile,
  head_width: int,
  base: float | None = None,
) -> rope.RopeConfig:
  """Takes the rotary fields.

  Args:
    fields: of the file.
    file: which may hold divisors of the frequencies.
    head_width: H.
    base: where the file does not say it; None: it must.

  Raises:
    errors.UserError: a rule that is not known here.
  """
  base = fields.number('rope.freq_base', base)
  factor = fields.number('rope.scaling.factor', 1.0)
  # A factor without a type is linear scaling, as llama.cpp reads it.
  kind = fields.take('rope.scaling.type', 'linear' if factor != 1 else 'none')
  # Older writers used this key; it means linear scaling.
  old_factor = fields.number('rope.scale_linear', 1.0)
  if old_factor != 1.0 and kind == 'none':
    kind, factor = 'linear', old_factor
  if kind not in ('none', 'linear', 'yarn'):
    raise errors.UserError(
      f'{file.where}: {fields.arch}.rope.scaling.type {kind!r} is not'
      " supported; use a file with 'none', 'linear' or 'yarn'"
    )
  if kind != 'none' and FREQUENCIES in file.names():
    raise errors.UserError(
      f'{file.where}: {kind} rope scaling together with {FREQUENCIES} is not'
      ' supported; convert the model again'
    )
  if FREQUENCIES in file.names():
    return _llama3(base, file.read(FREQUENCIES), head_width, file.where)
  if kind == 'yarn':
    length = fields.count('rope.scaling.original_context_length')
    return rope.RopeConfig(
      base=base, kind='yarn', factor=factor, original_max_len=length
    )
  if kind == 'linear':
    return rope.RopeConfig(base=base, kind='linear', factor=factor)
  return rope.RopeConfig(base=base, kind='default')


def _llama3(
  base: float, divisors: np.ndarray, head_width: int, where: str
) -> rope.RopeConfig:
  """Finds the Llama 3 rule (low 1, high 4, from 8192) behind its divisors."""
  factor = float(divisors.max())
  exponents = np.arange(0, head_width, 2, dtype=np.float64) / head_width
  turns = 8192 / (2 * np.pi * base**exponents)
  smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
  expected = 1.0 / ((1.0 - smooth) / factor + smooth)
  if divisors.shape != expected.shape or not np.allclose(
    divisors, expected, rtol=1e-3
  ):
    raise errors.UserError(
      f'{where}: {FREQUENCIES} is not the Llama 3 rule (low 1, high 4, original'
      ' length 8192); load the Hugging Face folder instead'
    )
  return rope.RopeConfig(
    base=base,
    kind='llama3',
    factor=factor,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_len=8192,
  )
