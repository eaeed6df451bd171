# SPDX-License-Identifier: MIT
"""DFlash: a whole block in one pass (arXiv 2602.06036).

The block [anchor, MASK, MASK, ...] runs through a few layers that see, as extra
keys and values, what the target knows of the text: a few of its layers,
projected to one row a token. Slots predict independently of each other, so the
deeper ones are the less sure. With `fusion` 'gated' the projection is one
softmax over the taps, which tells what layers are worth capturing.
"""

from jspec.drafters import block_method

METHOD = block_method.BlockMethod(
  name='dflash',
  parts=('fusion', 'gate_temperature'),
)
