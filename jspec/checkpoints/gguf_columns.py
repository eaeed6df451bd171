# SPDX-License-Identifier: MIT
"""Rows of quantised blocks decoded straight into columns.

A model keeps [in, out], a file [out, in]. Turned first, while they are few
bits, there is less to turn, and scales lie beside the numbers they multiply:

  on disk   [out, in / 32, scale | 16 bytes]
  turned    codes [in / 32, 16, out]   scales [in / 32, 1, out]
  floats    scale * code + least, [in, out]

The same operations on the same numbers as `gguf.quants.dequantize`: no bit of
the result differs.
"""

import numpy as np

KINDS = ('Q4_0', 'Q4_1', 'Q8_0')

_BLOCK = 32
# Of floats at once: they stay in a cache through all that is done to them.
_PART_BYTES = 400_000
_FEWEST_ROWS = 32


def write(data: np.ndarray, kind: str, out: np.ndarray) -> None:
  """Decodes rows.

  Args:
    data: uint8 [rows, bytes], whole blocks.
    kind: one of `KINDS`.
    out: where to, float32 [in, rows].
  """
  num_rows, num_blocks = len(data), len(out) // _BLOCK
  blocks = data.reshape(num_rows, num_blocks, -1)
  out = out.reshape(num_blocks, _BLOCK, num_rows)  # A view: an axis is cut.
  decode = _eight_bits if kind == 'Q8_0' else _four_bits
  step = max(_FEWEST_ROWS, _PART_BYTES // (2 * _BLOCK * num_blocks))
  for start in range(0, num_rows, step):
    stored = blocks[start : start + step].transpose(1, 2, 0)
    decode(np.ascontiguousarray(stored), out[..., start : start + step], kind)


def _eight_bits(stored, out, kind):
  """Two bytes of scale, 32 whole numbers."""
  del kind
  scale, codes = _half(stored, 0), stored[:, 2:].view(np.int8)
  half = _BLOCK // 2
  for at in (slice(0, half), slice(half, _BLOCK)):
    np.multiply(codes[:, at].astype(np.float32), scale, out=out[:, at])


def _four_bits(stored, out, kind):
  """A scale and perhaps the least value; low halves of bytes come first."""
  scale = _half(stored, 0)
  least = _half(stored, 2) if kind == 'Q4_1' else None
  packed = stored[:, 2 if least is None else 4 :]
  half = _BLOCK // 2
  for codes, at in (
    (packed & 15, out[:, :half]),
    (packed >> 4, out[:, half:]),
  ):
    values = codes.astype(np.float32)
    if least is None:
      values -= 8
      np.multiply(values, scale, out=at)
    else:
      values *= scale
      np.add(values, least, out=at)


def _half(stored, at):
  """Two bytes of each block, a number of 16 bits: [blocks, 1, rows]."""
  low, high = (stored[:, i : i + 1].astype(np.uint16) for i in (at, at + 1))
  return (low | high << 8).view(np.float16).astype(np.float32)
